"""Kill tests of the Spark sink: SIGKILL ends processes at each step of each guarantee, then a reader counts the rows.

A supervisor (supervisor.py) starts a query (driver.py) in processes of its own. Files in a folder (job.py) tell these
processes where to die. The sink is the production sink: source.py is a data source whose writers load faults.py, and
faults.py wraps the functions at each step. reader.py counts the rows that a reader with read_committed sees, at the end
and for `atomic` during the whole run. run.py plans the kills and judges the result. brokers.py kills nodes of Kafka.

`python -m tests.spark.kills --help`
"""
