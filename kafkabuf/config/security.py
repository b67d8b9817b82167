"""The settings of TLS and SASL. A SecretStr keeps a secret out of all output."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from kafkabuf.config.values import (
    Flag,
    Int32,
    Milliseconds,
    Number,
    Secret,
    Strings,
    Text,
    Upper,
    callable_only,
    java_class,
    name_check,
    store_type,
)
from kafkabuf.java_names import CLIENT_HANDLERS, IAM_LOGIN_HANDLER, LOGIN_HANDLERS

Mechanism = Literal["GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"]
NameCheck = Annotated[Literal["https", ""], BeforeValidator(name_check)]
TlsVersion = Literal["TLSv1.2", "TLSv1.3"]
Store = Annotated[Literal["JKS", "PKCS12", "PEM"], BeforeValidator(store_type)]
ClientHandler = Annotated[Any, BeforeValidator(java_class(CLIENT_HANDLERS))]
LoginHandler = Annotated[Any, BeforeValidator(java_class(LOGIN_HANDLERS))]
Provider = Annotated[Any, BeforeValidator(callable_only)]


class SecuritySettings(BaseModel):
    """How client and brokers authenticate each other, and whether they encrypt."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True, validate_default=False
    )

    security_protocol: Annotated[Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], Upper] = Field(
        "PLAINTEXT", description="Protocol between client and brokers, in any case."
    )

    ssl_truststore_type: Store = Field(
        "JKS", description="Format of the trusted CAs. No need to set it: the content of the file tells the format."
    )
    ssl_truststore_location: Text = Field(
        None,
        description="File of trusted CAs: PEM, JKS, or PKCS12 (needs `kafkabuf[pkcs12]`). Without it, the system's "
        "CAs.",
    )
    ssl_truststore_password: Secret = Field(
        None, description="Password of a JKS or PKCS12 file; a JKS file is not checked without it."
    )
    ssl_truststore_certificates: Secret = Field(
        None, description="The trusted CAs as PEM text, in lines or in one line."
    )
    ssl_keystore_type: Store = Field(
        "JKS",
        description="Format of key and certificates. No need to set it: the content of the file tells the format.",
    )
    ssl_keystore_location: Text = Field(
        None,
        description="File of the client's private key and its certificates: PEM, JKS, or PKCS12 (needs "
        "`kafkabuf[pkcs12]`). Of several keys the client uses the first.",
    )
    ssl_keystore_password: Secret = Field(
        None, description="Password of a JKS or PKCS12 file, and of its key unless ssl.key.password is set."
    )
    ssl_keystore_key: Secret = Field(None, description="The client's private key as PEM text, in lines or in one line.")
    ssl_keystore_certificate_chain: Secret = Field(
        None, description="The client's certificates as PEM text, in lines or in one line."
    )
    ssl_key_password: Secret = Field(None, description="Password of the client's private key, if the key is encrypted.")
    ssl_endpoint_identification_algorithm: NameCheck = Field(
        "https", description="https: the broker's certificate must contain the broker's name; empty: no check."
    )
    ssl_enabled_protocols: Annotated[tuple[TlsVersion, ...], Strings] = Field(
        ("TLSv1.2", "TLSv1.3"), description="Allowed TLS versions."
    )
    ssl_cipher_suites: Annotated[tuple[str, ...] | None, Strings] = Field(
        None, description="Allowed cipher suites, under Java's or OpenSSL's names; without it, OpenSSL's defaults."
    )

    sasl_mechanism: Annotated[Mechanism, Upper] = Field(
        "GSSAPI",
        description="Required with SASL_*; kafkabuf does not support GSSAPI (Kerberos), Java's default. AWS_MSK_IAM "
        "needs `kafkabuf[aws-msk]`.",
    )
    sasl_username: Text = Field(None, description="User of PLAIN and SCRAM (as in librdkafka; not in Java).")
    sasl_password: Secret = Field(None, description="Password of PLAIN and SCRAM (as in librdkafka; not in Java).")
    sasl_jaas_config: Secret = Field(
        None,
        description="Java's way to give user and password: PlainLoginModule or ScramLoginModule with both; "
        "OAuthBearerLoginModule and IAMLoginModule.",
    )
    sasl_client_callback_handler_class: ClientHandler = Field(
        None, description="No effect: MSK's IAMClientCallbackHandler goes with AWS_MSK_IAM; another is refused."
    )
    sasl_login_callback_handler_class: LoginHandler = Field(
        None,
        description="MSK's IAMOAuthBearerLoginCallbackHandler gets tokens as AWS_MSK_IAM does, Kafka's "
        "OAuthBearerLoginCallbackHandler from the token endpoint; another is refused.",
    )
    sasl_login_connect_timeout_ms: Int32 | None = Field(
        None, description="Time-out of a connection to the token endpoint."
    )
    sasl_login_read_timeout_ms: Int32 | None = Field(None, description="Time-out of the token endpoint's response.")
    sasl_login_retry_backoff_ms: Milliseconds = Field(
        100, description="Pause before the client requests a token again; doubles with each failure."
    )
    sasl_login_retry_backoff_max_ms: Milliseconds = Field(
        10_000, description="Longest pause before the client requests a token again."
    )
    sasl_login_refresh_window_factor: Annotated[float, Number, Field(ge=0.5, le=1.0)] = Field(
        0.8, description="Fraction of a token's lifetime after which the client requests a new token."
    )
    sasl_login_refresh_window_jitter: Annotated[float, Number, Field(ge=0.0, le=0.25)] = Field(
        0.05, description="Largest random addition to that fraction."
    )
    sasl_login_refresh_min_period_seconds: Annotated[int, Number, Field(ge=0, le=900)] = Field(
        60, description="Shortest time between two refreshes of a token."
    )
    sasl_login_refresh_buffer_seconds: Annotated[int, Number, Field(ge=0, le=3600)] = Field(
        300, description="The client requests a new token at least this long before the old token expires."
    )

    sasl_oauthbearer_token_provider: Provider = Field(
        None, description="A callable that returns a token, in place of an endpoint (not in Java)."
    )
    sasl_oauthbearer_token_endpoint_url: Text = Field(None, description="URL (https) from which to request tokens.")
    sasl_oauthbearer_scope: Text = Field(None, description="Scope of the requested token.")
    sasl_oauthbearer_client_credentials_client_id: Text = Field(None, description="Client id at the token endpoint.")
    sasl_oauthbearer_client_credentials_client_secret: Secret = Field(
        None, description="Client secret at the token endpoint."
    )
    sasl_oauthbearer_header_urlencode: Flag = Field(
        False, description="Percent-encode client id and secret in the header (RFC 6749, section 2.3.1)."
    )

    @property
    def signs_for_msk(self) -> bool:
        """Whether tokens come from AWS's signer, by either of the ways that MSK's Java library has."""
        return self.sasl_mechanism == "AWS_MSK_IAM" or self.sasl_login_callback_handler_class == IAM_LOGIN_HANDLER
