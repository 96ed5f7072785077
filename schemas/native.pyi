from collections.abc import Mapping

from schemas.codecs.compiler import Encoder, Schema
from schemas.codecs.decompiler import Decoder

def compile_encoder(schema: Schema, classes: Mapping[str, type]) -> Encoder: ...
def compile_decoder(schema: Schema, classes: Mapping[str, type]) -> Decoder: ...
