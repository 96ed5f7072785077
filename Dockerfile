# One image for the nodes, the topics, Spark and the audit of docker-compose.yml: Python with the package, Java, and the jars
# of Spark's connectors and of Kafka's broker (those of the profile 'secure' run from here).

FROM maven:3.9.9-eclipse-temurin-17 AS jars
COPY stratolog/local/poms/spark.xml /poms/pom.xml
RUN mvn -B -q -f /poms/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=/jars
COPY stratolog/local/poms/delta.xml /poms/delta.xml
RUN mvn -B -q -f /poms/delta.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=/delta-jars
COPY stratolog/local/poms/kafka.xml /poms/kafka.xml
RUN mvn -B -q -f /poms/kafka.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=/kafka-jars

FROM python:3.11.13-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/stratolog
COPY pyproject.toml README.md LICENSE requirements-dev.lock ./
COPY build_tools ./build_tools
COPY schemas ./schemas
COPY transport ./transport
COPY replicated_db ./replicated_db
COPY om_processors ./om_processors
COPY datanode_processors ./datanode_processors
COPY producers ./producers
COPY spark_streaming ./spark_streaming
COPY stratolog ./stratolog
# The compiler is for the codec in C alone. The versions are those that the tests have passed with.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && pip install --no-cache-dir --constraint requirements-dev.lock '.[om,datanode,ui,tracing,spark]' \
    && apt-get purge -y --auto-remove gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=jars /jars /var/cache/stratolog/jars/spark-4.0.0
COPY --from=jars /delta-jars /var/cache/stratolog/jars/delta-4.0.0
COPY --from=jars /kafka-jars /var/cache/stratolog/jars/kafka-4.3.1
# Spark's own scripts, for the standalone master and worker.
RUN ln -s "$(python -c 'from importlib.util import find_spec as f; print(f("pyspark").submodule_search_locations[0])')" /opt/spark
RUN useradd --uid 10001 --create-home stratolog \
    && mkdir -p /data /run/stratolog-key /run/stratolog && chown stratolog: /data /run/stratolog-key /run/stratolog
USER 10001:10001
# Away from the sources: 'python -m' would import them in place of what is installed, where all lies below 'stratolog'.
WORKDIR /home/stratolog
ENV STRATOLOG_CACHE_DIR=/var/cache/stratolog STRATOLOG_DATA_DIR=/data
ENTRYPOINT ["stratolog"]
