//! Bearer tokens: JSON Web Tokens (RFC 7519) signed with HMAC-SHA-256.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, new_error};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use signature::{Signer, Verifier};

use crate::error::{Error, Result};

/// A shorter secret can be guessed.
const MIN_SECRET_BYTES: usize = 32;

/// Closed sessions that are remembered while their tokens could be used.
const CLOSED: usize = 1_000_000;

/// What makes and verifies tokens.
pub struct Tokens {
    /// Which users file, of all servers with this secret, its tokens are for.
    audience: Option<String>,
    /// Sessions that were closed, and when their tokens expire.
    closed: Mutex<HashMap<String, u64>>,
    secret: Hs256,
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
    /// Which password it was made with: it ends with that. A token made offline does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pwd: Option<String>,
    /// Which users file it is for; without it, any server with the secret takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aud: Option<String>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens")
    }
}

impl Tokens {
    /// Tokens that end with this process: their secret is drawn now.
    pub fn random() -> Self {
        Self::new(&rand::random::<[u8; 32]>()).expect("a key of 32 bytes")
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
        Self::new(secret).map_err(|e| Error::usage(format!("using the secret: {e}")))
    }

    /// Makes and takes tokens for the users of that file; those for another are refused. Servers
    /// that shall take each other's tokens name their files alike.
    ///
    /// # Errors
    /// [`Error::Io`] when there is no such file.
    pub fn for_users(mut self, users: &Path) -> Result<Self> {
        let path = users
            .canonicalize()
            .map_err(|e| Error::io(format!("reading users from {}", users.display()), e))?;
        self.audience = Some(self.audience_of(path.as_os_str().as_encoded_bytes()));
        Ok(self)
    }

    /// The same for the users of a database, by what tells it from others.
    #[must_use]
    pub fn for_database(mut self, id: &[u8]) -> Self {
        self.audience = Some(self.audience_of(id));
        self
    }

    fn audience_of(&self, name: &[u8]) -> String {
        let digest = self.secret.sign(name);
        digest[..8].iter().map(|b| format!("{b:02x}")).collect()
    }

    fn new(secret: &[u8]) -> jsonwebtoken::errors::Result<Self> {
        // Whoever else in the process uses the crate has installed one that knows HS256, too.
        let _ = HS256.install_default();
        let mut validation = Validation::new(Algorithm::HS256);
        validation.leeway = 0;
        validation.set_required_spec_claims(&["exp", "sub"]);
        // Tokens made offline may have none.
        validation.validate_aud = false;
        Ok(Self {
            audience: None,
            closed: Mutex::default(),
            secret: Hs256::new(secret)?,
            signing: EncodingKey::from_secret(secret),
            verifying: DecodingKey::from_secret(secret),
            validation,
        })
    }

    /// A token for a user: of a session, and made with a password, where it is that of a login.
    ///
    /// # Errors
    /// [`Error::Usage`] when it can't be signed.
    pub fn sign(
        &self,
        user: &str,
        session: Option<String>,
        password: Option<String>,
        valid: Duration,
    ) -> Result<String> {
        let claims = Claims {
            sub: user.to_string(),
            exp: now().saturating_add(valid.as_secs()),
            sid: session,
            pwd: password,
            aud: self.audience.clone(),
        };
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &self.signing)
            .map_err(|e| Error::usage(format!("signing a token: {e}")))
    }

    /// What a token says, if it was signed with our secret and has not expired.
    ///
    /// # Errors
    /// [`Error::Denied`] with what is wrong.
    pub fn verify(&self, token: &str) -> Result<Claims> {
        let not_ours = || "the token is not one of this server's; connect again";
        let token = jsonwebtoken::decode::<Claims>(token, &self.verifying, &self.validation);
        let claims = token.map(|token| token.claims).map_err(|e| {
            Error::Denied(match e.kind() {
                ErrorKind::ExpiredSignature => "the token has expired; connect again".into(),
                _ => not_ours().into(),
            })
        })?;
        if claims.aud.is_some() && claims.aud != self.audience {
            return Err(Error::Denied(not_ours().into()));
        }
        let session = claims.sid.as_ref();
        match session.is_some_and(|session| self.closed.lock().contains_key(session)) {
            true => Err(Error::Denied(
                "the session was closed; connect again".into(),
            )),
            false => Ok(claims),
        }
    }

    /// Ends a login. A token made offline belongs to no login, and stays.
    pub fn close(&self, claims: &Claims) {
        let Some(session) = &claims.sid else {
            return;
        };
        let mut closed = self.closed.lock();
        if closed.len() >= CLOSED {
            let now = now();
            closed.retain(|_, expires| *expires > now);
        }
        closed.insert(session.clone(), claims.exp);
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |t| t.as_secs())
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
        Ok(Self(
            key.map_err(|_| new_error(ErrorKind::InvalidKeyFormat))?,
        ))
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
            .sign("ada", Some("7".into()), None, Duration::from_secs(60))
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
            pwd: None,
            aud: None,
        };
        let old = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &old, &tokens.signing);
        let error = tokens.verify(&old.unwrap()).unwrap_err();
        assert!(error.to_string().contains("expired"), "{error}");
    }

    #[test]
    fn a_login_ends_when_it_is_closed_and_is_for_one_users_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("secret"), [b'x'; 40]).unwrap();
        let tokens = |users: &str| {
            std::fs::write(path(users), "").unwrap();
            let tokens = Tokens::from_file(&path("secret")).unwrap();
            tokens.for_users(&path(users)).unwrap()
        };
        let (one, other) = (tokens("one"), tokens("other"));
        let hour = Duration::from_secs(3600);
        let login = one.sign("ada", Some("7".into()), None, hour).unwrap();
        assert!(tokens("one").verify(&login).is_ok());
        assert!(other.verify(&login).is_err());
        // Made with nothing but the secret, it is for all who have that.
        let offline = Tokens::from_file(&path("secret")).unwrap();
        let offline = offline.sign("ada", None, None, hour).unwrap();
        assert!(one.verify(&offline).is_ok() && other.verify(&offline).is_ok());

        let claims = one.verify(&login).unwrap();
        one.close(&claims);
        let error = one.verify(&login).unwrap_err().to_string();
        assert!(error.contains("closed"), "{error}");
        one.close(&one.verify(&offline).unwrap());
        assert!(one.verify(&offline).is_ok());
    }
}
