"""AWS_MSK_IAM: Amazon MSK knows an IAM identity by a token, which the signer of AWS makes. Needs `kafkabuf[aws-msk]`.

MSK's Java library has a mechanism of that name. Its brokers take the signer's token by OAUTHBEARER on the same port.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafkabuf.errors import ConfigError, SaslAuthenticationError
from kafkabuf.extras import install
from kafkabuf.network.sasl.jaas import unsupported

MECHANISM = "AWS_MSK_IAM"
_OPTIONS = ("awsProfileName", "awsRoleArn", "awsRoleSessionName")
_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?", re.I)
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")


def token_provider(
    servers: Iterable[tuple[str, int]], options: Mapping[str, str]
) -> Callable[[], tuple[str, float | None]]:
    """A provider of tokens, from AWS's default credentials or those that JAAS options name as in MSK's Java library.

    The region is that of the brokers' names, else that of the environment. Raises ConfigError.
    """
    if unknown := options.keys() - set(_OPTIONS):
        raise unsupported(unknown, _OPTIONS)
    sign, region = _signer(options), _region(servers)

    def token() -> tuple[str, float | None]:
        try:
            value, expires_at_ms = sign(region)
        except AttributeError:  # the signer's own error where it found no credentials
            raise SaslAuthenticationError(
                f"{MECHANISM}: found no AWS credentials here: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give "
                "this machine a role"
            ) from None
        return value, expires_at_ms / 1000

    return token


def _signer(options: Mapping[str, str]) -> Callable[[str], tuple[str, int]]:
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as signer
    except ImportError:
        raise ConfigError(f"{MECHANISM} needs a package of AWS: {install('aws-msk')}") from None
    profile, role, session = map(options.get, _OPTIONS)
    named: tuple[Any, ...] = (role,) if session is None else (role, session)
    if role is not None:
        return lambda region: signer.generate_auth_token_from_role_arn(region, *named)
    if profile is not None:
        return lambda region: signer.generate_auth_token_from_profile(region, profile)
    return lambda region: signer.generate_auth_token(region)


def _region(servers: Iterable[tuple[str, int]]) -> str:
    for host, _ in servers:
        if match := _HOST.search(host):
            return match[1].lower()
    region = next(filter(None, map(os.environ.get, _REGION_VARIABLES)), None)
    if region is None:
        raise ConfigError(
            f"{MECHANISM}: the names in bootstrap.servers have no AWS region: set the environment variable "
            f"{_REGION_VARIABLES[0]}"
        )
    return region
