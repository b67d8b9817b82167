"""AWS_MSK_IAM, and Java's names for it: the settings of a Java client of Amazon MSK work as they are."""

from __future__ import annotations

import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kafkabuf.clock import ManualClock
from kafkabuf.errors import ConfigError, SaslAuthenticationError
from kafkabuf.network.sasl import mechanisms as sasl
from kafkabuf.network.sasl.oauth import OAuthBearer
from tests.network.security_support import SecureBroker, secured
from tests.network.support import config_for

IAM = "software.amazon.msk.auth.iam"
AS_MSK = {
    "sasl_mechanism": "AWS_MSK_IAM",
    "sasl_jaas_config": f"{IAM}.IAMLoginModule required;",
    "sasl_client_callback_handler_class": f"{IAM}.IAMClientCallbackHandler",
}
AS_OAUTH = {
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_jaas_config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
    "sasl_login_callback_handler_class": f"{IAM}.IAMOAuthBearerLoginCallbackHandler",
}
ON_DATABRICKS = {
    "sasl_mechanism": "AWS_MSK_IAM",
    "sasl_jaas_config": f"shadedmskiam.{IAM}.IAMLoginModule required;",
    "sasl_client_callback_handler_class": f"shadedmskiam.{IAM}.IAMClientCallbackHandler",
}


class Signer:
    """Stands for aws_msk_iam_sasl_signer.MSKAuthTokenProvider. It keeps the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def _sign(self, *call: Any) -> tuple[str, int]:
        self.calls.append(call)
        return "signed-token", int(time.time() + 900) * 1000

    def generate_auth_token(self, region: str) -> tuple[str, int]:
        return self._sign(region)

    def generate_auth_token_from_profile(self, region: str, aws_profile: str) -> tuple[str, int]:
        return self._sign(region, aws_profile)

    def generate_auth_token_from_role_arn(
        self, region: str, role_arn: str, sts_session_name: str = "session"
    ) -> tuple[str, int]:
        return self._sign(region, role_arn, sts_session_name)


@pytest.fixture
def signer(monkeypatch: pytest.MonkeyPatch) -> Signer:
    module: Any = ModuleType("aws_msk_iam_sasl_signer")
    module.MSKAuthTokenProvider = signer = Signer()
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", module)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    return signer


def mechanism(*servers: tuple[str, int], **settings: Any) -> OAuthBearer:
    config = config_for(*servers, security_protocol="SASL_SSL", **settings)
    made = sasl.mechanism(config, ManualClock(wall_ms=int(time.time() * 1000)), lambda: 0.5)
    assert isinstance(made, OAuthBearer)
    return made


@pytest.mark.parametrize("settings", [AS_MSK, AS_OAUTH, ON_DATABRICKS, {"sasl_mechanism": "aws_msk_iam"}])
def test_broker_gets_the_signers_token_by_oauthbearer(signer: Signer, settings: dict[str, str]) -> None:
    exchanges = {"OAUTHBEARER": lambda: lambda message: b""}
    with secured(SecureBroker(exchanges=exchanges), **settings) as (rigged, broker):
        rigged.connect(0)
        assert set(broker.handshakes) == {"OAUTHBEARER"}
        assert broker.tokens[0] == b"n,,\x01auth=Bearer signed-token\x01\x01"
    assert signer.calls == [("eu-central-1",)]


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ("awsProfileName=dev", ("dev",)),
        ("awsRoleArn='arn:aws:iam::1:role/r'", ("arn:aws:iam::1:role/r", "session")),
        ('awsRoleArn="arn:r" awsRoleSessionName="spark"', ("arn:r", "spark")),
    ],
)
def test_jaas_options_choose_the_credentials(signer: Signer, options: str, call: tuple[str, ...]) -> None:
    token = mechanism(sasl_mechanism="AWS_MSK_IAM", sasl_jaas_config=f"{IAM}.IAMLoginModule required {options};")
    assert token.token().value == "signed-token"
    assert signer.calls == [("eu-central-1", *call)]


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("b-1.demo.ab12cd.c3.kafka.us-west-2.amazonaws.com", "us-west-2"),
        ("boot-ab12.c1.kafka-serverless.ap-south-1.amazonaws.com", "ap-south-1"),
        ("b-1.demo.ab12cd.c3.kafka.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("kafka.example.com", "eu-central-1"),
    ],
)
def test_region_is_that_of_the_brokers_name_else_of_the_environment(signer: Signer, host: str, region: str) -> None:
    assert mechanism((host, 9098), **AS_MSK).token().value == "signed-token"
    assert signer.calls == [(region,)]


def test_what_is_missing_is_named(signer: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = f"{IAM}.IAMLoginModule required awsStsRegion=us-east-1;"
    with pytest.raises(ConfigError, match="options not supported: awsStsRegion; allowed: awsProfileName, awsRoleArn"):
        mechanism(sasl_mechanism="AWS_MSK_IAM", sasl_jaas_config=unknown)
    no_credentials = SimpleNamespace(generate_auth_token=lambda region: None.access_key)  # type: ignore[attr-defined]
    monkeypatch.setattr(sys.modules["aws_msk_iam_sasl_signer"], "MSKAuthTokenProvider", no_credentials)
    with pytest.raises(SaslAuthenticationError, match="found no AWS credentials here: set AWS_ACCESS_KEY_ID"):
        mechanism(**AS_MSK).token()
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(ConfigError, match="have no AWS region: set the environment variable AWS_REGION"):
        mechanism(**AS_MSK)
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(ConfigError, match=r'pip install "kafkabuf\[aws-msk\]"'):
        mechanism(**AS_MSK)
