"""Kill tests of the Spark sink: processes end by SIGKILL at each step of each guarantee, then the topic is counted.

A query (driver.py) runs in processes of its own under a supervisor (supervisor.py), which tells it by files in a folder
(job.py) where to die. The sink is the production one: source.py is a data source whose writers load faults.py, which
wraps the functions at each step. reader.py counts what a reader with read_committed sees, while it runs and at the end.

`python -m tests.spark.kills --help`
"""
