"""The settings of TLS and SASL. A SecretStr keeps a secret out of all output."""

from __future__ import annotations

from typing import Any

from kafkabuf.config import values
from kafkabuf.config.java_names import CLIENT_HANDLERS, DEFAULT_RETRIEVER, IAM_LOGIN_HANDLER, LOGIN_HANDLERS, RETRIEVERS
from kafkabuf.config.kinds import choice, flag, fraction, integer, long, path, secret, special, text, url, words
from kafkabuf.config.secret import SecretStr


def _store_type(content: str) -> Any:
    description = f"Format of {content}. No need to set it: the content of the file tells the format."
    return special(values.store_type, "JKS", description, "string", "JKS, PKCS12, PEM")


class SecuritySettings:
    """How client and brokers authenticate each other, and whether they encrypt."""

    security_protocol: str = choice(
        "PLAINTEXT",
        "Protocol between client and brokers, in any case.",
        "PLAINTEXT",
        "SSL",
        "SASL_PLAINTEXT",
        "SASL_SSL",
        fold=str.upper,
    )

    ssl_truststore_type: str = _store_type("the trusted CAs")
    ssl_truststore_location: str | None = path(
        "File of trusted CAs: PEM, JKS, or PKCS12 (needs `kafkabuf[pkcs12]`). Without it, the system's CAs.",
    )
    ssl_truststore_password: SecretStr | None = secret(
        "Password of a JKS or PKCS12 file; a JKS file is not checked without it."
    )
    ssl_truststore_certificates: SecretStr | None = secret("The trusted CAs as PEM text, in lines or in one line.")
    ssl_keystore_type: str = _store_type("key and certificates")
    ssl_keystore_location: str | None = path(
        "File of the client's private key and its certificates: PEM, JKS, or PKCS12 (needs "
        "`kafkabuf[pkcs12]`). Of several keys the client uses the first.",
    )
    ssl_keystore_password: SecretStr | None = secret(
        "Password of a JKS or PKCS12 file, and of its key unless ssl.key.password is set."
    )
    ssl_keystore_key: SecretStr | None = secret("The client's private key as PEM text, in lines or in one line.")
    ssl_keystore_certificate_chain: SecretStr | None = secret(
        "The client's certificates as PEM text, in lines or in one line."
    )
    ssl_key_password: SecretStr | None = secret("Password of the client's private key, if the key is encrypted.")
    ssl_endpoint_identification_algorithm: str = special(
        values.name_check,
        "https",
        "https: the broker's certificate must contain the broker's name; empty: no check.",
        "string",
        "https, empty",
    )
    ssl_enabled_protocols: tuple[str, ...] = words(
        ("TLSv1.2", "TLSv1.3"), "Allowed TLS versions.", "TLSv1.2", "TLSv1.3"
    )
    ssl_cipher_suites: tuple[str, ...] | None = words(
        None, "Allowed cipher suites, under Java's or OpenSSL's names; without it, OpenSSL's defaults."
    )

    sasl_mechanism: str = choice(
        "GSSAPI",
        "How a client says who it is, with SASL_*. GSSAPI (Kerberos) needs `kafkabuf[gssapi]`, AWS_MSK_IAM "
        "`kafkabuf[aws-msk]`.",
        "GSSAPI",
        "PLAIN",
        "SCRAM-SHA-256",
        "SCRAM-SHA-512",
        "OAUTHBEARER",
        "AWS_MSK_IAM",
        fold=str.upper,
    )
    sasl_username: str | None = text(None, "User of PLAIN and SCRAM (as in librdkafka; not in Java).")
    sasl_password: SecretStr | None = secret("Password of PLAIN and SCRAM (as in librdkafka; not in Java).")
    sasl_jaas_config: SecretStr | None = secret(
        "Java's way to give credentials: PlainLoginModule or ScramLoginModule with user and password "
        '(`tokenauth="true"`: a delegation token), Krb5LoginModule, OAuthBearerLoginModule and IAMLoginModule.',
    )
    sasl_client_callback_handler_class: Any = special(
        values.java_class(CLIENT_HANDLERS),
        None,
        "No effect: MSK's IAMClientCallbackHandler goes with AWS_MSK_IAM; another is refused.",
    )
    sasl_login_callback_handler_class: Any = special(
        values.java_class(LOGIN_HANDLERS),
        None,
        "MSK's IAMOAuthBearerLoginCallbackHandler gets tokens as AWS_MSK_IAM does, Kafka's "
        "OAuthBearerLoginCallbackHandler from the token endpoint; another is refused.",
    )
    sasl_login_connect_timeout_ms: int | None = integer(None, "Time-out of a connection to the token endpoint.")
    sasl_login_read_timeout_ms: int | None = integer(None, "Time-out of the token endpoint's response.")
    sasl_login_retry_backoff_ms: int = long(
        100, "Pause before the client requests a token again; doubles with each failure."
    )
    sasl_login_retry_backoff_max_ms: int = long(10_000, "Longest pause before the client requests a token again.")
    sasl_login_refresh_window_factor: float = fraction(
        0.8, "Fraction of a token's lifetime after which the client requests a new token.", low=0.5, high=1.0
    )
    sasl_login_refresh_window_jitter: float = fraction(
        0.05, "Largest random addition to that fraction.", low=0.0, high=0.25
    )
    sasl_login_refresh_min_period_seconds: int = integer(
        60, "Shortest time between two refreshes of a token.", high=900
    )
    sasl_login_refresh_buffer_seconds: int = integer(
        300, "The client requests a new token at least this long before the old token expires.", high=3600
    )

    sasl_oauthbearer_token_provider: Any = special(
        values.callable_only,
        None,
        "A callable in place of an endpoint (not in Java). It returns a token, or a tuple of the token, its expiry in "
        "seconds since the epoch or null, and perhaps a map of SASL extensions.",
    )
    sasl_oauthbearer_token_endpoint_url: str | None = url(
        "URL (https) from which to request tokens, through the proxy of the environment (https_proxy, no_proxy); or "
        "file:///path of a file that has the token, a JWT.",
    )
    sasl_oauthbearer_jwt_retriever_class: str = special(
        values.java_class(RETRIEVERS, DEFAULT_RETRIEVER),
        DEFAULT_RETRIEVER,
        "How to get a token: JwtBearerJwtRetriever exchanges an assertion for it (grant jwt-bearer, KIP-1139), "
        "FileJwtRetriever reads a file, ClientCredentialsJwtRetriever has the client's secret or an assertion. "
        "DefaultJwtRetriever chooses one of the latter two by the URL.",
        valid="Kafka's four classes",
    )
    sasl_oauthbearer_scope: str | None = text(None, "Scope of the requested token.")
    sasl_oauthbearer_client_credentials_client_id: str | None = text(None, "Client id at the token endpoint.")
    sasl_oauthbearer_client_credentials_client_secret: SecretStr | None = secret("Client secret at the token endpoint.")
    sasl_oauthbearer_assertion_file: str | None = path(
        "File that has an assertion, a JWT, which then no other setting of assertions changes; read each time."
    )
    sasl_oauthbearer_assertion_private_key_file: str | None = path(
        "File with the private key (PEM) that signs assertions, in place of the client secret (KIP-1258, KIP-1139); "
        "needs `kafkabuf[oauth]`; read each time.",
    )
    sasl_oauthbearer_assertion_private_key_passphrase: SecretStr | None = secret(
        "Password of that private key, if the key is encrypted."
    )
    sasl_oauthbearer_assertion_algorithm: str = choice(
        "RS256", "How assertions are signed.", "ES256", "RS256", fold=str.upper
    )
    sasl_oauthbearer_assertion_claim_aud: str | None = text(None, "Claim aud (audience) of an assertion.")
    sasl_oauthbearer_assertion_claim_iss: str | None = text(None, "Claim iss (issuer) of an assertion.")
    sasl_oauthbearer_assertion_claim_sub: str | None = text(None, "Claim sub (subject) of an assertion.")
    sasl_oauthbearer_assertion_claim_exp_seconds: int = integer(
        300, "How long an assertion is valid (claim exp).", high=86_400
    )
    sasl_oauthbearer_assertion_claim_nbf_seconds: int = integer(
        60, "How long before its making an assertion is valid (claim nbf), for clocks that differ.", high=3600
    )
    sasl_oauthbearer_assertion_claim_jti_include: bool = flag(
        False, "Give each assertion a unique claim jti, by which an identity provider notices a repetition."
    )
    sasl_oauthbearer_assertion_template_file: str | None = path(
        'File with further headers and claims of assertions, as JSON: {"header": {"kid": "..."}, "payload": {}}; read '
        "each time.",
    )
    sasl_oauthbearer_header_urlencode: bool = flag(
        False, "Percent-encode client id and secret in the header (RFC 6749, section 2.3.1)."
    )

    sasl_kerberos_service_name: str | None = text(
        None, "First part of the brokers' Kerberos principals, which most clusters call kafka; required with GSSAPI."
    )
    sasl_kerberos_keytab: str | None = path(
        "Keytab with the key of sasl.kerberos.principal (as in librdkafka; not in Java). The client logs in by itself. "
        "Without it, the user's ticket cache.",
    )
    sasl_kerberos_principal: str | None = text(
        None, "The client's Kerberos principal, such as user@REALM (as in librdkafka; not in Java)."
    )
    sasl_kerberos_kinit_cmd: str = special(
        values.program,
        "/usr/bin/kinit",
        "Path of kinit, which renews a ticket cache (`kinit -R`); a keytab does not need it.",
        "string",
    )
    sasl_kerberos_min_time_before_relogin: int = long(60_000, "Shortest time between two attempts to renew a ticket.")
    sasl_kerberos_ticket_renew_window_factor: float = fraction(
        0.8, "Fraction of a ticket's lifetime after which the client renews the ticket.", low=0.0, high=1.0
    )
    sasl_kerberos_ticket_renew_jitter: float = fraction(
        0.05, "Largest random addition to that fraction.", low=0.0, high=1.0
    )

    @property
    def signs_for_msk(self) -> bool:
        """Whether tokens come from AWS's signer, by either of the ways that MSK's Java library has."""
        return self.sasl_mechanism == "AWS_MSK_IAM" or self.sasl_login_callback_handler_class == IAM_LOGIN_HANDLER
