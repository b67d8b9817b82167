"""The rules of the proof, row by row of the table in kafkabuf/spool/rules.py, and how it goes on through trouble."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

import pytest

from kafkabuf.errors import (
    AuthenticationError,
    ClosedError,
    FencedLeaderEpochError,
    KafkaError,
    NetworkError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    TopicAuthorizationError,
    UnsupportedVersionError,
)
from kafkabuf.spool.evidence import Outcome, Proof, SpooledBatch, SpooledPartition, Stretch
from kafkabuf.spool.proof import prove
from kafkabuf.spool.rules import is_later
from kafkabuf.transactions.groups import TopicPartition
from tests.spool.model import LARGEST, Memory, ModelCluster, ModelLog, numbered, spooled, uuid

THERE, ABSENT, FORGOTTEN, UNPROVEN = Outcome.THERE, Outcome.ABSENT, Outcome.FORGOTTEN, Outcome.UNPROVEN
# In doubt when the process died. The log of `after` has the acknowledged records 0 to 9 at offsets 0 to 9.
FIRST, SECOND, THIRD = numbered(1, 10), numbered(2, 15), numbered(3, 20, 10)
IN_DOUBT = FIRST, SECOND, THIRD
UNNUMBERED = SpooledBatch(4, -1, -1, -1, 5, 1_004)


def after(batches: Iterable[SpooledBatch], *, committed: bool = True) -> ModelLog:
    """A log with the acknowledged records, and then these batches, as the leader took them."""
    log = ModelLog()
    for batch in (numbered(0, 0, 10), *batches):
        assert log.append(batch) == "appended"
    log.high_watermark = log.end if committed else 10
    return log


def forgetful(batches: Iterable[SpooledBatch]) -> ModelLog:
    """As `after`, and the leader has forgotten the id (producer.id.expiration.ms)."""
    log = after(batches)
    log.memory.clear()
    return log


def prove_one(log: ModelLog, batches: Iterable[SpooledBatch] = IN_DOUBT, **remembered: object) -> Proof:
    return prove_by(ModelCluster(log), spooled(tuple(batches), **remembered))


def prove_by(cluster: ModelCluster, partition: SpooledPartition) -> Proof:
    (proof,) = prove(cluster, [partition])
    assert len(proof.verdicts) == len(partition.batches)
    return proof


def outcomes(proof: Proof) -> list[Outcome]:
    return [verdict.outcome for verdict in proof.verdicts]


# ---- the leader's memory decides -------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrived", range(4))
def test_batches_up_to_the_last_sequence_are_there_and_later_ones_absent(arrived: int) -> None:
    proof = prove_one(after(IN_DOUBT[:arrived]))
    assert outcomes(proof) == [THERE] * arrived + [ABSENT] * (3 - arrived)
    assert all(verdict.own_numbers for verdict in proof.verdicts)
    assert not proof.restored
    assert not proof.made_again


def test_memory_that_fits_needs_no_reading() -> None:
    cluster = ModelCluster(after(IN_DOUBT[:2]))
    prove_by(cluster, spooled(IN_DOUBT))
    assert "read" not in cluster.calls


def test_sequences_that_wrap_round_are_compared_by_their_order() -> None:
    first, second = numbered(1, LARGEST - 2), numbered(2, 2)
    log = ModelLog()
    for batch in (numbered(0, LARGEST - 12, 10), first):
        log.append(batch)
    log.high_watermark = log.end
    remembered = {"last_acked": LARGEST - 3, "next_sequence": 7}
    assert outcomes(prove_one(log, (first, second), **remembered)) == [THERE, ABSENT]
    log.append(second)
    log.high_watermark = log.end
    assert outcomes(prove_one(log, (first, second), **remembered)) == [THERE, THERE]


def test_largest_sequence_is_followed_by_0() -> None:
    assert is_later(0, LARGEST)
    assert not is_later(LARGEST, 0)
    assert is_later(0, -1)
    assert not is_later(-1, 0)
    assert not is_later(-1, -1)
    assert not is_later(5, 5)


def test_older_epoch_at_the_leader_means_that_nothing_of_the_newer_came() -> None:
    batches = [numbered(1, 0, epoch=1), numbered(2, 5, epoch=1)]
    proof = prove_one(after(IN_DOUBT), batches, epoch=1, last_acked=-1, next_sequence=10, last_acked_offset=29)
    assert outcomes(proof) == [ABSENT, ABSENT]
    assert not proof.restored


def test_leader_that_has_no_sequence_of_the_epoch_has_no_batch_of_it() -> None:
    log = after(())
    log.memory[7] = Memory(0, [(-1, -1, -1)])
    cluster = ModelCluster(log)
    assert outcomes(prove_by(cluster, spooled((numbered(1, 0),), last_acked=-1, next_sequence=5))) == [ABSENT]
    assert cluster.calls == ["ask"]


def test_leader_that_has_lost_the_acknowledged_sequences_does_not_decide() -> None:
    log = after([FIRST])
    log.memory[7] = Memory(0, [(-1, -1, -1)])
    assert outcomes(prove_one(log)) == [THERE, FORGOTTEN, FORGOTTEN]


def test_unnumbered_batch_was_never_sent() -> None:
    cluster = ModelCluster(after(()))
    assert outcomes(prove_by(cluster, spooled([UNNUMBERED], next_sequence=10))) == [ABSENT]
    assert cluster.calls == ["ask"]


def test_batch_without_idempotence_is_unproven_without_a_question() -> None:
    cluster = ModelCluster(after(()))
    proof = prove_by(cluster, spooled([UNNUMBERED], idempotent=False))
    assert outcomes(proof) == [UNPROVEN]
    assert "enable.idempotence=false" in proof.verdicts[0].reason
    assert cluster.calls == []


def test_batch_is_there_only_when_the_high_watermark_has_passed_it() -> None:
    log = after(IN_DOUBT[:2], committed=False)
    cluster = ModelCluster(log)
    proof = prove_by(cluster, spooled(IN_DOUBT))
    assert outcomes(proof) == [THERE, THERE, ABSENT]
    assert cluster.pauses == 4
    assert log.high_watermark == log.end


@pytest.mark.parametrize("error", [FencedLeaderEpochError, NotLeaderOrFollowerError, NetworkError])
def test_batch_that_the_leader_had_and_lost_before_its_commit_is_absent(error: type[KafkaError]) -> None:
    log = after(IN_DOUBT[:2], committed=False)

    def fail_over(call: str) -> None:
        if call == "ends" and log.memory[7].batches[-1][1] == SECOND.last_sequence:
            del log.headers[-1], log.memory[7].batches[-1]
            log.end = 15
            raise error("the leader has moved")

    cluster = ModelCluster(log, trouble=fail_over)
    assert outcomes(prove_by(cluster, spooled(IN_DOUBT))) == [THERE, ABSENT, ABSENT]


def test_batch_that_a_second_question_found_is_there_only_when_it_is_committed() -> None:
    log = after(IN_DOUBT[:1], committed=False)

    def move(call: str) -> None:
        if call == "ends" and SECOND.number not in log.ever and cluster.calls.count("ends") == 2:
            log.append(SECOND)  # a late request
            raise NotLeaderOrFollowerError("the leader has moved")

    cluster = ModelCluster(log, trouble=move)
    assert outcomes(prove_by(cluster, spooled(IN_DOUBT))) == [THERE, THERE, ABSENT]
    assert log.high_watermark >= 20


def test_log_that_grows_faster_than_it_is_committed_does_not_hold_up_the_proof() -> None:
    log = after(IN_DOUBT, committed=False)

    def grow(call: str) -> None:
        log.append_others(3)

    assert outcomes(prove_by(ModelCluster(log, trouble=grow), spooled(IN_DOUBT))) == [THERE] * 3


# ---- the log decides -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrived", range(4))
def test_forgotten_id_is_looked_for_in_the_log(arrived: int) -> None:
    log = forgetful(IN_DOUBT[:arrived])
    log.append_others(7)
    log.high_watermark = log.end
    proof = prove_one(log)
    assert outcomes(proof) == [THERE] * arrived + [FORGOTTEN] * (3 - arrived)
    assert [verdict.base_offset for verdict in proof.verdicts] == [10, 15, 20][:arrived] + [-1] * (3 - arrived)
    assert all(verdict.own_numbers for verdict in proof.verdicts), "a late request must not come beside the batch"


def test_reading_begins_behind_the_last_acknowledged_offset_and_ends_with_the_last_batch_that_is_missing() -> None:
    log = forgetful(IN_DOUBT)
    for _ in range(100):
        log.append_others(1)
    log.high_watermark = log.end
    cluster = ModelCluster(log, batches_of_a_read=1)
    assert outcomes(prove_by(cluster, spooled(IN_DOUBT))) == [THERE] * 3
    assert cluster.calls.count("read") == 3


def test_whole_log_is_read_for_a_batch_before_the_last_acknowledged() -> None:
    log = forgetful(IN_DOUBT)
    assert outcomes(prove_one(log, (FIRST,), last_acked=19, last_acked_offset=19)) == [THERE]


def test_batch_that_is_not_committed_yet_is_not_absent() -> None:
    log = after(IN_DOUBT, committed=False)
    log.memory.clear()
    assert outcomes(prove_one(log)) == [THERE] * 3


@pytest.mark.parametrize("gone_up_to", [11, 20, 30])
def test_batch_that_may_have_been_in_a_deleted_stretch_is_unproven(gone_up_to: int) -> None:
    log = forgetful(IN_DOUBT[:1])
    log.append_others(15)
    log.high_watermark = log.end
    log.delete_up_to(gone_up_to)
    proof = prove_one(log)
    assert outcomes(proof)[1:] == [UNPROVEN, UNPROVEN]
    assert outcomes(proof)[0] == (THERE if gone_up_to == 11 else UNPROVEN)
    if gone_up_to > 11:
        assert "offsets 10 to" in proof.verdicts[1].reason
        assert "are gone" in proof.verdicts[1].reason


def test_deleted_stretch_before_the_last_acknowledged_offset_does_not_matter() -> None:
    log = forgetful(())
    log.append_others(5)
    log.high_watermark = log.end
    log.delete_up_to(10)
    assert outcomes(prove_one(log)) == [FORGOTTEN] * 3


def test_batch_of_an_earlier_id_may_lie_before_the_last_acknowledged_offset() -> None:
    """It stayed in the file while the next process delivered records under an id of its own."""
    log = forgetful(IN_DOUBT)
    log.delete_up_to(25)
    for last_acked in (-1, 4):
        left = spooled(IN_DOUBT[:1], producer_id=8, last_acked=last_acked, last_acked_offset=24, next_sequence=5)
        assert outcomes(prove_by(ModelCluster(log), left)) == [UNPROVEN]


def test_read_that_the_high_watermark_has_overtaken_leaves_no_hole() -> None:
    """The leader reads its log, followers fetch, and then the response gets the high watermark."""

    class Overtaken(ModelCluster):
        overtaken = False

        def read(self, partition: TopicPartition, topic_id: UUID | None, offset: int) -> Stretch:
            stretch = super().read(partition, topic_id, offset)
            if self.overtaken:
                return stretch
            self.overtaken = True
            return replace(stretch, headers=())

    assert outcomes(prove_by(Overtaken(forgetful(IN_DOUBT[:2])), spooled(IN_DOUBT))) == [THERE, THERE, FORGOTTEN]


def test_hole_that_compaction_left_makes_missing_batches_unproven() -> None:
    log = forgetful(IN_DOUBT)
    log.append_others(5)
    log.high_watermark = log.end
    log.remove(2)  # SECOND
    proof = prove_one(log)
    assert outcomes(proof) == [THERE, UNPROVEN, THERE]
    assert "offsets 15 to 19" in proof.verdicts[1].reason


def test_hole_at_the_end_of_the_log_ends_the_reading() -> None:
    log = forgetful(IN_DOUBT)
    log.remove(3)  # THIRD
    proof = prove_one(log)
    assert outcomes(proof) == [THERE, THERE, UNPROVEN]
    assert "offsets 20 to 29" in proof.verdicts[2].reason


def test_topic_that_was_made_again_is_read_from_its_start() -> None:
    log = ModelLog(topic_id=uuid(2))
    log.append(FIRST)  # it was on its way when the topic was made again
    log.append_others(40)
    log.high_watermark = log.end
    proof = prove_one(log)
    assert proof.made_again
    assert outcomes(proof) == [THERE, FORGOTTEN, FORGOTTEN]


def test_log_that_is_shorter_than_what_was_acknowledged_is_read_from_its_start() -> None:
    log = ModelLog()
    log.append(FIRST)
    log.memory.clear()
    log.high_watermark = log.end
    assert outcomes(prove_one(log, topic_id=None)) == [THERE, FORGOTTEN, FORGOTTEN]


@pytest.mark.parametrize("error", [UnsupportedVersionError("Kafka 2.7"), TopicAuthorizationError("no")])
def test_log_alone_decides_where_the_leader_tells_nothing_of_producers(error: KafkaError) -> None:
    cluster = ModelCluster(after(IN_DOUBT[:1]), describes=error)
    assert outcomes(prove_by(cluster, spooled(IN_DOUBT))) == [THERE, ABSENT, ABSENT]


def test_log_that_may_not_be_read_leaves_batches_unproven_and_says_what_to_grant() -> None:
    refusal = TopicAuthorizationError("not authorized")
    cluster = ModelCluster(forgetful(IN_DOUBT), describes=refusal, reads=refusal)
    proof = prove_by(cluster, spooled([*IN_DOUBT, UNNUMBERED]))
    assert outcomes(proof) == [UNPROVEN] * 3 + [ABSENT]
    assert "grant this user Read on topic 't'" in proof.verdicts[0].reason


def test_batch_that_is_not_known_to_be_committed_is_unproven() -> None:
    cluster = ModelCluster(after(IN_DOUBT[:1], committed=False), reads=TopicAuthorizationError("no"))
    assert outcomes(prove_by(cluster, spooled(IN_DOUBT))) == [UNPROVEN, ABSENT, ABSENT]


def test_absent_batch_needs_no_right_to_read() -> None:
    cluster = ModelCluster(after(()), reads=TopicAuthorizationError("no"))
    assert outcomes(prove_by(cluster, spooled(IN_DOUBT))) == [ABSENT] * 3


# ---- a file that is older than the cluster ---------------------------------------------------------------------------


def test_newer_epoch_at_the_leader_tells_of_a_restored_file_and_the_log_decides() -> None:
    log = after(IN_DOUBT[:1])
    log.append(numbered(9, 0, epoch=1))
    log.high_watermark = log.end
    proof = prove_one(log, [*IN_DOUBT, UNNUMBERED])
    assert "epoch 1 of this producer, and the file has epoch 0" in proof.restored
    assert outcomes(proof) == [THERE, FORGOTTEN, FORGOTTEN, UNPROVEN]
    assert [verdict.own_numbers for verdict in proof.verdicts[1:3]] == [False, False]


def test_sequence_of_a_newer_epoch_does_not_count_for_an_older() -> None:
    log = after(())
    log.append(numbered(FIRST.number, 0, 15, epoch=1))  # its end and its timestamp are those of FIRST
    log.high_watermark = log.end
    assert outcomes(prove_one(log)) == [FORGOTTEN] * 3


def test_sequence_that_the_file_never_gave_tells_of_a_restored_file_and_the_log_decides() -> None:
    log = after([*IN_DOUBT, numbered(9, 30)])
    proof = prove_one(log, [*IN_DOUBT, UNNUMBERED])
    assert "sequence 34 of this producer, and the file has given no sequence after 29" in proof.restored
    assert outcomes(proof) == [THERE] * 3 + [UNPROVEN]
    assert [verdict.base_offset for verdict in proof.verdicts[:3]] == [10, 15, 20]


def test_other_life_that_only_the_log_knows_tells_of_a_restored_file() -> None:
    log = forgetful([*IN_DOUBT[:2], replace(THIRD, number=9), numbered(8, 30)])
    proof = prove_one(log, [*IN_DOUBT, UNNUMBERED])  # THIRD is not the batch that the log has: its timestamp differs
    assert proof.restored
    assert outcomes(proof)[3] == UNPROVEN


# What the process left without numbers, as others send it: by the process itself, or by one that has opened the file.
LEFT = [replace(UNNUMBERED, number=number, largest_timestamp=1_000 + number) for number in (4, 5, 6)]


def sent(batches: Iterable[SpooledBatch], epoch: int, base: int) -> list[SpooledBatch]:
    result = []
    for batch in batches:
        result.append(replace(batch, producer_id=7, epoch=epoch, base_sequence=base))
        base += batch.count
    return result


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize(("epoch", "base"), [(0, 30), (1, 0)])
@pytest.mark.parametrize("gone", range(1, 4))
def test_batches_without_numbers_are_followed_to_where_another_process_has_got(
    gone: int, epoch: int, base: int, knows: bool
) -> None:
    log = after([*IN_DOUBT, *sent(LEFT[:gone], epoch, base)])
    if not knows:
        log.memory.clear()
    proof = prove_one(log, [*IN_DOUBT, *LEFT])
    assert proof.restored
    assert outcomes(proof) == [THERE] * (3 + gone) + [ABSENT] * (3 - gone)
    assert [verdict.found_under for verdict in proof.verdicts[3 : 3 + gone]] == [
        (epoch, base + 5 * place) for place in range(gone)
    ]
    assert proof.line == (epoch, base + 5 * gone)


def test_process_that_was_killed_on_its_way_is_followed_into_the_next_epoch() -> None:
    log = after([*IN_DOUBT, *sent(LEFT[:1], 0, 30), *sent(LEFT[1:2], 1, 0)])
    proof = prove_one(log, [*IN_DOUBT, *LEFT])
    assert outcomes(proof) == [THERE] * 5 + [ABSENT]
    assert proof.line == (1, 5)


def test_batch_that_grew_after_the_copy_is_there() -> None:
    (grown,) = sent([replace(LEFT[0], count=8, largest_timestamp=1_100)], 0, 30)
    assert outcomes(prove_one(after([*IN_DOUBT, grown]), [*IN_DOUBT, LEFT[0]])) == [THERE] * 4


@pytest.mark.parametrize(
    "other", [replace(LEFT[0], count=4), replace(LEFT[0], largest_timestamp=1), replace(LEFT[0], base_timestamp=7)]
)
def test_other_records_where_a_batch_without_numbers_would_be_leave_it_unproven(other: SpooledBatch) -> None:
    log = after([*IN_DOUBT, *sent([other], 1, 0)])
    proof = prove_one(log, [*IN_DOUBT, *LEFT])
    assert outcomes(proof) == [THERE] * 3 + [UNPROVEN] * 3
    assert not any(verdict.own_numbers for verdict in proof.verdicts[3:])


def test_batches_without_numbers_are_unproven_where_another_process_has_sent_more_than_they_are() -> None:
    log = after([*IN_DOUBT, *sent(LEFT[:1], 0, 30), numbered(9, 35, 2)])
    assert outcomes(prove_one(log, [*IN_DOUBT, *LEFT])) == [THERE] * 4 + [UNPROVEN] * 2


def test_whole_log_is_not_read_for_batches_without_numbers_of_an_id_that_nobody_knows() -> None:
    cluster = ModelCluster(forgetful(()))
    proof = prove_by(cluster, spooled(LEFT, last_acked=-1, last_acked_offset=-1, next_sequence=0))
    assert outcomes(proof) == [ABSENT] * 3
    assert "read" not in cluster.calls


def test_numbers_of_a_file_for_another_cluster_prove_nothing() -> None:
    cluster = ModelCluster(after(IN_DOUBT))
    cluster.cluster_id = "here"
    proof = prove_by(cluster, spooled([*IN_DOUBT, *LEFT], cluster_id="there"))
    assert outcomes(proof) == [UNPROVEN] * 6
    assert not any(verdict.own_numbers for verdict in proof.verdicts)
    assert proof.other_cluster == "the file is for cluster 'there', and this is cluster 'here'"
    for known in ("", "here"):
        assert outcomes(prove_by(cluster, spooled(IN_DOUBT, cluster_id=known))) == [THERE] * 3


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "other", [replace(SECOND, count=3), replace(SECOND, count=9), replace(SECOND, largest_timestamp=5)]
)
def test_other_records_under_the_numbers_of_a_batch_make_it_unproven(other: SpooledBatch, known: bool) -> None:
    log = after([FIRST, other]) if known else forgetful([FIRST, other])
    proof = prove_one(log)
    assert outcomes(proof)[:2] == [THERE, UNPROVEN]
    assert "offset 15 of t-0 has other records" in proof.verdicts[1].reason
    assert proof.restored
    assert not proof.verdicts[1].own_numbers


def test_other_records_that_begin_before_a_batch_and_reach_into_it_make_it_unproven() -> None:
    log = after([numbered(9, 10, 7)])
    assert outcomes(prove_one(log, (SECOND, THIRD))) == [UNPROVEN, FORGOTTEN]


def test_last_sequence_before_the_last_acknowledged_does_not_decide() -> None:
    """The leader has forgotten the id, and then took a repeated batch as its first."""
    log = after([FIRST, SECOND])
    log.memory[7].batches = [(10, 14, FIRST.largest_timestamp)]
    assert outcomes(prove_one(log, (SECOND,), last_acked=19, last_acked_offset=9)) == [THERE]


def test_append_time_of_the_broker_does_not_count_as_other_records() -> None:
    log = after(IN_DOUBT[:2])
    log.memory[7].batches[-1] = (15, 19, 777_777)
    log.headers = [(number, replace(header, largest_timestamp=-1)) for number, header in log.headers]
    proof = prove_one(log)
    assert outcomes(proof)[:2] == [THERE, THERE]
    assert not proof.restored


def test_batch_of_an_older_epoch_is_looked_for_in_the_log() -> None:
    log = after([FIRST])
    newer = numbered(2, 0, epoch=1)
    log.append(newer)
    log.high_watermark = log.end
    remembered = {"epoch": 1, "last_acked": -1, "next_sequence": 5}
    proof = prove_one(log, (FIRST, replace(SECOND, number=3), newer), **remembered)
    assert outcomes(proof) == [THERE, FORGOTTEN, THERE]
    assert not proof.restored
    assert not proof.verdicts[1].own_numbers


# ---- trouble ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        NetworkError("the connection was lost"),
        NotLeaderOrFollowerError("moved"),
        FencedLeaderEpochError("moved"),
        OffsetOutOfRangeError("the log was cut"),
        AuthenticationError("the password is refused"),
    ],
)
@pytest.mark.parametrize("memory", [True, False])
def test_errors_that_pass_decide_nothing(error: KafkaError, memory: bool, caplog: pytest.LogCaptureFixture) -> None:
    failures = {"ask": 5, "ends": 5, "read": 5}
    if isinstance(error, OffsetOutOfRangeError):
        failures["ask"] = 0

    def fail(call: str) -> None:
        if failures[call]:
            failures[call] -= 1
            raise error

    log = after(IN_DOUBT[:2]) if memory else forgetful(IN_DOUBT[:2])
    with caplog.at_level(logging.INFO, "kafkabuf.spool"):
        proof = prove_by(ModelCluster(log, trouble=fail, batches_of_a_read=1), spooled(IN_DOUBT))
    assert outcomes(proof) == [THERE, THERE, ABSENT if memory else FORGOTTEN]
    assert len([record for record in caplog.records if str(error) in record.getMessage()]) == 1


def test_reading_goes_on_where_a_lost_connection_ended_it() -> None:
    log = forgetful(())
    for _ in range(10):
        log.append_others(2)
    log.high_watermark = log.end
    offsets: list[int] = []

    class Flaky(ModelCluster):
        def read(self, partition, topic_id, offset):  # type: ignore[no-untyped-def]
            offsets.append(offset)
            if len(offsets) % 2:
                raise NetworkError("lost")
            return super().read(partition, topic_id, offset)

    assert outcomes(prove_by(Flaky(log, batches_of_a_read=1), spooled(IN_DOUBT))) == [FORGOTTEN] * 3
    assert offsets[::2] == list(range(10, 30, 2))


def test_topic_made_again_while_its_log_is_read_is_read_anew() -> None:
    old, new = forgetful(()), ModelLog(topic_id=uuid(2))
    for _ in range(5):
        old.append_others(1)
    old.high_watermark = old.end
    new.append(FIRST)
    new.memory.clear()
    new.high_watermark = new.end
    cluster = ModelCluster(old, batches_of_a_read=1)

    def make_again(call: str) -> None:
        if cluster.calls.count("read") == 3:
            cluster.log = new

    cluster.trouble = make_again
    proof = prove_by(cluster, spooled(IN_DOUBT))
    assert proof.made_again
    assert outcomes(proof) == [THERE, FORGOTTEN, FORGOTTEN]


def test_log_that_was_cut_while_it_was_read_is_read_anew() -> None:
    log = forgetful([FIRST, SECOND])
    cluster = ModelCluster(log, batches_of_a_read=1)

    def cut(call: str) -> None:
        if call == "read" and cluster.calls.count("read") == 2:
            del log.headers[1:]
            log.end = log.high_watermark = 10

    cluster.trouble = cut
    assert outcomes(prove_by(cluster, spooled(IN_DOUBT))) == [FORGOTTEN] * 3


def test_partition_without_a_leader_does_not_hold_up_others() -> None:
    class Halved(ModelCluster):
        def ask(self, partitions):  # type: ignore[no-untyped-def]
            answers = dict(super().ask(partitions))
            if self.pauses < 20 and ("t", 1) in answers:
                answers["t", 1] = NetworkError("no leader")
            return answers

    cluster = Halved(after(IN_DOUBT))
    proofs = prove(cluster, [spooled(IN_DOUBT, partition=1), spooled(IN_DOUBT)])
    assert next(proofs).partition.partition == 0
    assert cluster.pauses == 0
    assert [proof.partition.partition for proof in proofs] == [1]


def test_long_reading_of_one_partition_lets_others_go_on() -> None:
    log = forgetful(())
    for _ in range(1_000):
        log.append_others(1)
    log.high_watermark = log.end

    class Halved(ModelCluster):
        def ask(self, partitions):  # type: ignore[no-untyped-def]
            answers = dict(super().ask(partitions))
            if ("t", 1) in answers and not self.calls.count("read"):
                answers["t", 1] = NetworkError("no leader yet")
            return answers

    cluster = Halved(log, batches_of_a_read=1)
    unnumbered = spooled([UNNUMBERED], partition=1, last_acked_offset=-1)
    assert [proof.partition.partition for proof in prove(cluster, [spooled(IN_DOUBT), unnumbered])] == [1, 0]
    assert cluster.pauses == 0


def test_lasting_error_of_the_reading_does_not_block_the_partition_for_ever() -> None:
    cluster = ModelCluster(forgetful(()), reads=UnsupportedVersionError("Kafka 0.11"))
    proof = prove_by(cluster, spooled(IN_DOUBT))
    assert outcomes(proof) == [UNPROVEN] * 3
    assert "Kafka 0.11" in proof.verdicts[0].reason


@pytest.mark.parametrize("call", ["ask", "ends", "read"])
def test_closed_producer_ends_the_proof(call: str) -> None:
    def close(now: str) -> None:
        if now == call:
            raise ClosedError("closed")

    with pytest.raises(ClosedError):
        prove_by(ModelCluster(forgetful(IN_DOUBT), trouble=close), spooled(IN_DOUBT))


def test_long_reading_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = forgetful(())
    for _ in range(200):
        log.append_others(1)
    log.high_watermark = log.end
    with caplog.at_level(logging.INFO, "kafkabuf.spool"):
        prove_by(ModelCluster(log, batches_of_a_read=1), spooled(IN_DOUBT))
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        f"t-0: looked for batches of the buffer's file up to offset {offset}, the log ends at 210"
        for offset in (74, 138, 202)
    ]
