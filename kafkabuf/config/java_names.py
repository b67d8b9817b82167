"""Names of Java's security classes that settings give, for which kafkabuf has something of its own."""

from __future__ import annotations

import re

_KAFKA = "org.apache.kafka.common.security"
_MSK = "software.amazon.msk.auth.iam"
PLAIN_MODULE = f"{_KAFKA}.plain.PlainLoginModule"
SCRAM_MODULE = f"{_KAFKA}.scram.ScramLoginModule"
OAUTH_MODULE = f"{_KAFKA}.oauthbearer.OAuthBearerLoginModule"
KERBEROS_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
IAM_MODULE = f"{_MSK}.IAMLoginModule"
# The values that sasl.client.callback.handler.class and sasl.login.callback.handler.class may have.
CLIENT_HANDLERS = (f"{_MSK}.IAMClientCallbackHandler",)
IAM_LOGIN_HANDLER = f"{_MSK}.IAMOAuthBearerLoginCallbackHandler"
LOGIN_HANDLERS = (
    f"{_KAFKA}.oauthbearer.OAuthBearerLoginCallbackHandler",
    f"{_KAFKA}.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    IAM_LOGIN_HANDLER,
)
# The values of sasl.oauthbearer.jwt.retriever.class.
DEFAULT_RETRIEVER = f"{_KAFKA}.oauthbearer.DefaultJwtRetriever"
CLIENT_CREDENTIALS_RETRIEVER = f"{_KAFKA}.oauthbearer.ClientCredentialsJwtRetriever"
FILE_RETRIEVER = f"{_KAFKA}.oauthbearer.FileJwtRetriever"
JWT_BEARER_RETRIEVER = f"{_KAFKA}.oauthbearer.JwtBearerJwtRetriever"
RETRIEVERS = (DEFAULT_RETRIEVER, CLIENT_CREDENTIALS_RETRIEVER, FILE_RETRIEVER, JWT_BEARER_RETRIEVER)
# Databricks puts the packages of Kafka and of MSK's library into packages of its own.
_SHADED = re.compile(r"^(?:kafkashaded|shadedmskiam)\.")


def unshaded(name: str) -> str:
    """The name of a class as its own project gives the name."""
    return _SHADED.sub("", name.strip())
