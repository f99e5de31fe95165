//! Bearer tokens: JSON Web Tokens (RFC 7519) signed with HMAC-SHA-256.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, new_error};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use signature::{Signer, Verifier};

use crate::error::{Error, Result};

/// A shorter secret can be guessed.
const MIN_SECRET_BYTES: usize = 32;

/// What makes and verifies tokens.
pub struct Tokens {
    signing: EncodingKey,
    verifying: DecodingKey,
    validation: Validation,
}

/// What a token says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The user.
    pub sub: String,
    /// Seconds since 1970 after which it is worth nothing.
    pub exp: u64,
    /// The session that a server started for it; a token made offline has none and gets one of
    /// its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sid: Option<String>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens")
    }
}

impl Tokens {
    /// Tokens that end with this process: their secret is drawn now.
    pub fn random() -> Self {
        Self::new(&rand::random::<[u8; 32]>())
    }

    /// Tokens of the secret in a file of at least 32 bytes, which outlive the process and can be
    /// made elsewhere.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Usage`] for a secret that is too short.
    pub fn from_file(path: &Path) -> Result<Self> {
        let secret = std::fs::read(path).map_err(|e| {
            Error::io(
                format!("reading the secret of tokens from {}", path.display()),
                e,
            )
        })?;
        let secret = secret.trim_ascii();
        if secret.len() < MIN_SECRET_BYTES {
            return Err(Error::usage(format!(
                "the secret in {} has {} bytes and needs {MIN_SECRET_BYTES}; openssl rand -base64 48 makes one",
                path.display(),
                secret.len()
            )));
        }
        Ok(Self::new(secret))
    }

    fn new(secret: &[u8]) -> Self {
        // Whoever else in the process uses the crate has installed one that knows HS256, too.
        let _ = HS256.install_default();
        let mut validation = Validation::new(Algorithm::HS256);
        validation.leeway = 0;
        validation.set_required_spec_claims(&["exp", "sub"]);
        Self {
            signing: EncodingKey::from_secret(secret),
            verifying: DecodingKey::from_secret(secret),
            validation,
        }
    }

    /// A token for a user.
    ///
    /// # Errors
    /// [`Error::Usage`] when it can't be signed.
    pub fn sign(&self, user: &str, session: Option<String>, valid: Duration) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let claims = Claims {
            sub: user.to_string(),
            exp: now
                .map_or(0, |t| t.as_secs())
                .saturating_add(valid.as_secs()),
            sid: session,
        };
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &self.signing)
            .map_err(|e| Error::usage(format!("signing a token: {e}")))
    }

    /// What a token says, if it was signed with our secret and has not expired.
    ///
    /// # Errors
    /// [`Error::Denied`] with what is wrong.
    pub fn verify(&self, token: &str) -> Result<Claims> {
        jsonwebtoken::decode::<Claims>(token, &self.verifying, &self.validation)
            .map(|token| token.claims)
            .map_err(|e| {
                Error::Denied(match e.kind() {
                    ErrorKind::ExpiredSignature => "the token has expired; connect again".into(),
                    _ => "the token is not one of this server's; connect again".into(),
                })
            })
    }
}

/// The one algorithm of our tokens, so that the crate needs no library of all of them.
static HS256: CryptoProvider = CryptoProvider {
    signer_factory: |algorithm, key| {
        expect_hs256(algorithm)?;
        Ok(Box::new(Hs256::new(key.as_bytes())?))
    },
    verifier_factory: |algorithm, key| {
        expect_hs256(algorithm)?;
        Ok(Box::new(Hs256::new(key.try_get_as_bytes()?)?))
    },
    key_utils: KeyUtils::new_unimplemented(),
};

fn expect_hs256(algorithm: &Algorithm) -> jsonwebtoken::errors::Result<()> {
    match algorithm {
        Algorithm::HS256 => Ok(()),
        _ => Err(new_error(ErrorKind::InvalidAlgorithm)),
    }
}

/// HMAC-SHA-256 with a secret (RFC 2104), compared in constant time.
struct Hs256(Hmac<Sha256>);

impl Hs256 {
    fn new(secret: &[u8]) -> jsonwebtoken::errors::Result<Self> {
        let key = Hmac::new_from_slice(secret);
        Ok(Self(key.map_err(|_| new_error(ErrorKind::InvalidKeyFormat))?))
    }
}

impl Signer<Vec<u8>> for Hs256 {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, signature::Error> {
        let mac = self.0.clone().chain_update(message).finalize();
        Ok(mac.into_bytes().to_vec())
    }
}

impl Verifier<Vec<u8>> for Hs256 {
    fn verify(
        &self,
        message: &[u8],
        signature: &Vec<u8>,
    ) -> std::result::Result<(), signature::Error> {
        let mac = self.0.clone().chain_update(message);
        mac.verify_slice(signature)
            .map_err(|_| signature::Error::new())
    }
}

impl JwtSigner for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

impl JwtVerifier for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_what_was_signed_until_it_expires() {
        let tokens = Tokens::random();
        let token = tokens
            .sign("ada", Some("7".into()), Duration::from_secs(60))
            .unwrap();
        let claims = tokens.verify(&token).unwrap();
        assert_eq!(
            (claims.sub.as_str(), claims.sid.as_deref()),
            ("ada", Some("7"))
        );

        assert!(Tokens::random().verify(&token).is_err());
        let mut forged = token.clone().into_bytes();
        let middle = forged.len() / 2;
        forged[middle] = if forged[middle] == b'A' { b'B' } else { b'A' };
        assert!(tokens.verify(&String::from_utf8(forged).unwrap()).is_err());
        // {"alg":"none"}
        let (_, rest) = token.split_once('.').unwrap();
        assert!(
            tokens
                .verify(&format!("eyJhbGciOiJub25lIn0.{rest}"))
                .is_err()
        );

        let old = Claims {
            sub: "ada".into(),
            exp: 1,
            sid: None,
        };
        let old = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &old, &tokens.signing);
        let error = tokens.verify(&old.unwrap()).unwrap_err();
        assert!(error.to_string().contains("expired"), "{error}");
    }
}
