#!/bin/sh
# Write requirements*.lock from pyproject.toml and requirements.in. Usage: make lock [PYTHON=python3.11]
set -eu

tools=build/lock
"${PYTHON:-python3.11}" -m venv "$tools"
"$tools/bin/python" -m pip install --quiet 'pip-tools>=7.5'

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

compile --output-file requirements-build.lock "$tools/build.in"
compile --extra cli --extra broker --extra spark --extra demo --extra test --extra lint --all-build-deps \
    --constraint requirements.in --constraint requirements-build.lock --output-file requirements.lock "$tools/pyproject.toml"
compile --extra bench --constraint requirements.lock --output-file requirements-bench.lock "$tools/pyproject.toml"
for age in oldest newest; do
    compile --output-file "requirements-spark-$age.lock" "$tools/spark-$age.in"
done
