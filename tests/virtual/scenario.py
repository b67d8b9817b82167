"""One seed: users send to a cluster under trouble, then the trouble ends, and all promises are checked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from tests.virtual.oracle import Archive
from tests.virtual.spooled import SpooledUser
from tests.virtual.trouble import Trouble
from tests.virtual.users import AT_ONCE, SOURCE, TransactionalUser, User
from tests.virtual.world import World

_MOST_TROUBLE = 14
_MOST_ACTIONS = 24


def simulate(seed: int) -> Counter[str]:
    """Counts of the actions and troubles, and the microseconds of virtual time. Raises Violation."""
    random = Random(seed)
    nodes = random.choice((1, 2, 3, 3))
    world = World(
        seed,
        nodes,
        replication_factor=min(nodes, 2),
        transaction_version=random.choice((1, 2)),
        replica_lag_time_max_ms=random.choice((1_000, 10_000)),
        broker_session_timeout_ms=3_000,
        request_log=0,
    )
    try:
        with TemporaryDirectory() as folder:
            _live(world, random, Path(folder))
    finally:
        world.close()
    world.done["microseconds"] = round(world.now() * 1e6)
    return world.done


def _live(world: World, random: Random, folder: Path) -> None:
    archive, topics = Archive(), ["t", "u"][: random.choice((1, 2))]
    trouble = Trouble(world, archive, topics)
    for name in topics:
        trouble.create(name)
    world.cluster.catalogue.create_topic(SOURCE[0], 1, len(world.nodes))
    horizon = random.choice((5.0, 30.0, 120.0, 600.0))
    users = [_user(world, random, f"u{number}", topics, horizon, folder) for number in range(random.choice((1, 1, 2)))]
    trouble.schedule(horizon, _MOST_TROUBLE)
    end = world.now() + horizon
    for _ in range(random.randrange(4, _MOST_ACTIONS)):
        random.choice(users).go()
        world.rest(random.choice((0.0, 0.001, 0.1, 1.0, horizon / 12, horizon / 4)))
        if world.now() >= end:
            break
    trouble.end()
    _await_calm(world, users)
    without_transactions = [user for user in users if not isinstance(user, TransactionalUser)]
    # Records may expire before a time-out shows that a node is frozen.
    if without_transactions and not world.frozen and random.random() < 0.5:
        without_transactions[0].check_recreated_topic(trouble)
    if trouble.freeze_a_node():
        for user in users:
            user.check_alive()
    for user in users:
        user.close(None)
    contents = archive.contents(world.cluster.catalogue.topics)
    for user in users:
        user.check(contents)


def _await_calm(world: World, users: list[User]) -> None:
    for user in users:
        user.calm()
    world.rest(max(_patience(user.producer.config) for user in users))
    for user in users:
        user.check_alive()


def _user(world: World, random: Random, name: str, topics: list[str], horizon: float, folder: Path) -> User:
    kind, settings = random.random(), _settings(random, horizon)
    if kind < 0.4:
        return TransactionalUser(world, name, topics, settings)
    if kind < 0.6:
        return SpooledUser(world, name, topics, settings, folder)
    return User(world, name, topics, settings)


def _settings(random: Random, horizon: float) -> dict[str, Any]:
    request_timeout = random.choice((1_000, 5_000, 30_000))
    linger = random.choice((0, 0, 5, 200))
    return {
        "acks": "all",
        "enable_idempotence": True,
        "linger_ms": linger,
        "batch_size": random.choice((0, 100, 700, 16_384)),
        "buffer_memory": random.choice((1 << 15, 1 << 20)),
        "max_request_size": random.choice((500, 2_000, 1 << 20)),
        "request_timeout_ms": request_timeout,
        "delivery_timeout_ms": random.choice((1, 4)) * (request_timeout + linger),
        "max_block_ms": random.choice((500, 5_000, 60_000)),
        "max_in_flight_requests_per_connection": random.choice((1, 2, 5)),
        "metadata_max_age_ms": random.choice((round(horizon * 50), 20_000, 300_000)),
        "metadata_max_idle_ms": random.choice((5_000, 30_000, 300_000)),
        "connections_max_idle_ms": random.choice((4_000, 540_000)),
        "socket_connection_setup_timeout_ms": random.choice((1_000, 10_000)),
        "transaction_timeout_ms": random.choice((10_000, 60_000)),
        "metadata_recovery_rebootstrap_trigger_ms": random.choice((5_000, 300_000)),
    }


def _patience(config: Any) -> float:
    """Seconds after the end of the trouble by which the settings require every record to have its outcome."""
    setup: int = config.socket_connection_setup_timeout_max_ms + config.reconnect_backoff_max_ms
    late: int = config.delivery_timeout_ms + config.request_timeout_ms + setup
    return AT_ONCE + late / 1000
