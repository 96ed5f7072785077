"""The door of the brokers: records of ``om.requests``, written by a user who may write there."""

from __future__ import annotations

import random
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from schemas.codecs.codec import Undecodable, decode_as
from schemas.codecs.envelopes import responses_in
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import connection
from schemas.records.messages import Response
from schemas.topics import OM_REQUESTS
from tests.chaos.fuzz.arms import MALLORY, Arms, Told
from tests.chaos.fuzz.requests import WildRequests

QUIET_S = 5.0
"""The attack is over once nothing has been answered for so long."""


def attack(arms: Arms, frames: int, seed: int, told: Told) -> None:
    """Write so many requests, and hear the answers to those that name the attacker's topic."""
    rng = random.Random(f"kafka {seed}")
    made = WildRequests(arms, rng)
    known = connection(arms.brokers, arms.kafka)
    producer = Producer(client_settings(known, {"linger.ms": 20, "log_level": 0}))
    consumer = Consumer(
        client_settings(known, {"group.id": "stratolog-client-fuzz", "enable.auto.commit": False, "log_level": 0})
    )
    consumer.assign([TopicPartition(f"om.responses.{MALLORY}", 0, 0)])
    try:
        while told["sent"] < frames:
            key, value, number = made.record()
            try:
                producer.produce(OM_REQUESTS, value, key, partition=0)
            except BufferError:
                producer.poll(0.1)
                continue
            told["sent"] += number
            told["records"] += 1
            if told["records"] % 500 == 0:
                producer.poll(0)
                _hear(consumer, arms, told, 0.0)
        producer.flush(60)
        last_s = time.monotonic()
        while time.monotonic() - last_s < QUIET_S:
            if _hear(consumer, arms, told, 0.5):
                last_s = time.monotonic()
    finally:
        consumer.close()


def _hear(consumer: Consumer, arms: Arms, told: Told, wait_s: float) -> int:
    messages = consumer.consume(1000, wait_s)
    for message in messages:
        value = message.value()
        if message.error() is not None or value is None:
            continue
        told["leaked"] += arms.canary.encode() in value
        for one in responses_in(value):
            count_answer(one, told)
    return len(messages)


def count_answer(value: bytes, told: Told) -> int:
    """Count a response, and return its call's number: nothing is OK for a user without rights."""
    told["answered"] += 1
    call_id = -1
    try:
        response = decode_as(Response, value)
        status, call_id = response.status, response.call_id
    except Undecodable:
        status = "not to be read"
    told["allowed" if status == "OK" else "refused"] += 1
    told[f"said {status}"] += 1
    return call_id
