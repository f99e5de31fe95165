//! Logins, and whom a request comes from.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Status};

use super::audit::Entry;
use super::listen::{Peer, peer_session};
use super::sessions::{ClientSession, Identity};
use super::shares::Share;
use super::state::State;
use super::status::status;
use super::tokens::Claims;
use super::users::{Credential, User};
use crate::grants::Principal;

/// In the place of a password's fingerprint: nobody was asked for one.
const UNASKED: &str = "unasked";

impl Identity {
    /// Whoever comes without a name, where there are no users.
    fn anonymous(session: String, peer: &Peer) -> Self {
        Self {
            session,
            principal: Principal::admin("anonymous"),
            credential: Credential::Other,
            claims: None,
            address: peer.address(),
        }
    }
}

impl State {
    /// Checks name and password and gives a token for a new session.
    pub(super) async fn log_in(&self, headers: &MetadataMap, peer: Peer) -> Result<String, Status> {
        let (name, password) = basic(headers)?.ok_or_else(|| {
            Status::unauthenticated("a handshake takes a user name and a password")
        })?;
        let user = self.check_password(&name, &password, &peer).await?;
        let identity = Identity {
            session: format!("{:032x}", rand::random::<u128>()),
            credential: Credential::of(user.password.as_ref()),
            principal: user.principal,
            claims: None,
            address: peer.address(),
        };
        self.sessions.get(&identity, &identity.principal)?;
        peer.logged_in();
        let address = identity.address.as_str();
        self.audit(|| Entry::login(&name, address, "password"));
        tracing::info!(user = name.as_str(), peer = address, "logged in");
        let (session, lifetime) = (identity.session, self.token_lifetime);
        // One that was got without a password is worth nothing once there are passwords.
        let password = user.password.unwrap_or_else(|| UNASKED.into());
        let token = self
            .tokens
            .sign(&name, Some(session), Some(password), lifetime);
        token.map_err(status)
    }

    /// The user of that name, if that is the password.
    pub(super) async fn check_password(
        &self,
        name: &str,
        password: &str,
        peer: &Peer,
    ) -> Result<User, Status> {
        let Some(users) = self.users() else {
            return Ok(User::admin(name));
        };
        let found = users.verify(name, password, peer.ip()).await?;
        found.ok_or_else(|| {
            // As a value, whose line breaks are escaped: a stranger wrote it.
            let address = peer.address();
            tracing::warn!(user = name, peer = address, "wrong user name or password");
            self.audit(|| Entry::refused(name, &address, "wrong user name or password"));
            Status::unauthenticated("wrong user name or password")
        })
    }

    /// Finds out whom a request comes from, by its headers, and notes it in its extensions. Gives
    /// the room that the user has for messages.
    pub(super) fn admit(
        &self,
        headers: &MetadataMap,
        extensions: &mut Extensions,
    ) -> Result<Arc<Share>, Status> {
        let peer = Peer::of(extensions);
        let identity = self.identify(headers, &peer).inspect_err(|error| {
            let address = peer.address();
            self.audit(|| Entry::refused("", &address, error.message()));
        })?;
        peer.logged_in();
        let share = self.shares.of(&identity.principal.name);
        extensions.insert(Arc::new(identity));
        Ok(share)
    }

    fn identify(&self, headers: &MetadataMap, peer: &Peer) -> Result<Identity, Status> {
        let header = headers.get("authorization").and_then(|h| h.to_str().ok());
        let bearer = header.and_then(|h| h.strip_prefix("Bearer "));
        if let Some(token) = bearer {
            return match (self.tokens.verify(token), self.users()) {
                (Ok(claims), _) => self.identify_by_token(token, claims, peer),
                // Who may do everything without a token may do it with any.
                (Err(_), None) => Ok(Identity::anonymous(format!("token {token}"), peer)),
                (Err(error), Some(_)) => Err(Status::unauthenticated(error.to_string())),
            };
        }
        let session = peer_session(&peer.address());
        let Some(users) = self.users() else {
            return Ok(Identity::anonymous(session, peer));
        };
        let log_in = "connect with a user name and a password, or with a token";
        // Whoever gives something is who that says, whatever their certificate is.
        let names = match header {
            None => peer.certificate_names(),
            Some(_) => &[],
        };
        let found = users.of_certificate(names)?;
        let (user, name) = found.ok_or_else(|| {
            Status::unauthenticated(match names {
                [] => log_in.to_string(),
                names => format!(
                    "{log_in}: no user has the certificate of {}",
                    names.join(", ")
                ),
            })
        })?;
        let address = peer.address();
        if !peer.is_known() {
            self.audit(|| Entry::login(&user.principal.name, &address, "certificate"));
        }
        Ok(Identity {
            session,
            principal: user.principal,
            credential: Credential::Certificate(name),
            claims: None,
            address,
        })
    }

    fn identify_by_token(
        &self,
        token: &str,
        claims: Claims,
        peer: &Peer,
    ) -> Result<Identity, Status> {
        let credential = Credential::of(claims.pwd.as_ref());
        let user = match self.users() {
            None => User::admin(&claims.sub),
            Some(users) => User::with(users.now()?.as_ref(), &claims.sub, &credential)?,
        };
        let session = claims.sid.clone();
        Ok(Identity {
            session: session.unwrap_or_else(|| format!("token {token}")),
            principal: user.principal,
            credential,
            claims: Some(claims),
            address: peer.address(),
        })
    }

    /// The session of a request that was admitted.
    pub(super) fn session(&self, extensions: &Extensions) -> Result<Arc<ClientSession>, Status> {
        let identity = identity(extensions)?;
        loop {
            let Some(users) = self.users() else {
                return self.sessions.get(identity, &identity.principal);
            };
            // Its body may have come long after its headers.
            let list = users.now()?;
            let user = User::with(&list, &identity.principal.name, &identity.credential)?;
            let session = self.sessions.get(identity, &user.principal)?;
            // Who ends sessions when users change finds this one from here on.
            if users.are_those(&list) {
                return Ok(session);
            }
        }
    }

    /// Ends the session of a request, and the login that it began with.
    pub(super) fn close_session(&self, extensions: &Extensions) -> Result<(), Status> {
        let identity = identity(extensions)?;
        if let Some(claims) = &identity.claims {
            self.tokens.close(claims);
        }
        self.sessions.close(&identity.session);
        Ok(())
    }
}

/// The key of the session of a request that was admitted.
pub(super) fn session_key(extensions: &Extensions) -> Option<&str> {
    let identity = identity(extensions).ok()?;
    Some(&identity.session)
}

fn identity(extensions: &Extensions) -> Result<&Identity, Status> {
    let identity = extensions.get::<Arc<Identity>>();
    identity
        .map(AsRef::as_ref)
        .ok_or_else(|| Status::unauthenticated("the request was not admitted"))
}

/// Name and password of HTTP's Basic authentication.
fn basic(headers: &MetadataMap) -> Result<Option<(String, String)>, Status> {
    let Some(header) = headers.get("authorization") else {
        return Ok(None);
    };
    let malformed =
        || Status::unauthenticated("the authorization header is not Basic name:password");
    let header = header.to_str().map_err(|_| malformed())?;
    parse_basic(header).map(Some).ok_or_else(malformed)
}

/// The same of a header's text.
pub(super) fn parse_basic(header: &str) -> Option<(String, String)> {
    let encoded = header.strip_prefix("Basic ")?;
    // Some drivers (ADBC's) don't pad it.
    let encoded = encoded.trim().trim_end_matches('=');
    let decoded = BASE64_STANDARD_NO_PAD.decode(encoded).ok()?;
    let text = String::from_utf8(decoded).ok()?;
    let (name, password) = text.split_once(':')?;
    Some((name.to_string(), password.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_logins_with_and_without_padding() {
        let login =
            |header| parse_basic(header).map(|(name, password)| format!("{name}|{password}"));
        assert_eq!(login("Basic Ym9iOng=").as_deref(), Some("bob|x"));
        assert_eq!(login("Basic Ym9iOng").as_deref(), Some("bob|x"));
        assert_eq!(login("Basic Ym9iOmE6Yg==").as_deref(), Some("bob|a:b"));
        for wrong in [
            "Basic",
            "Basic ",
            "Basic Ym9i",
            "Bearer Ym9iOng=",
            "Basic *",
            "Basic /w==",
        ] {
            assert_eq!(login(wrong), None, "{wrong}");
        }
    }
}
