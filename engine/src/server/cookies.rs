//! What a client is told of the transaction that it is in, as a cookie (RFC 6265), and gives back with
//! each request.
//!
//! gRPC makes a connection anew without a word to the client. A transaction that was begun by `BEGIN` is
//! its session's, which a server that was started again, or the next head of a rack, does not know: the
//! statements that were to belong to it would commit by themselves. By the cookie they are refused.

use std::sync::Arc;

use tonic::codegen::http::HeaderMap;
use tonic::codegen::http::header::{COOKIE, HeaderValue, SET_COOKIE};
use tonic::metadata::MetadataValue;
use tonic::{Extensions, Response, Status};

use super::identity::session_key;
use super::sessions::{ClientSession, TransactionMark};
use super::state::State;

const NAME: &str = "flashmesh-transaction";

impl TransactionMark {
    /// What a request says that its client is in.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let texts = headers.get_all(COOKIE).into_iter();
        let cookies = texts
            .filter_map(|text| text.to_str().ok())
            .flat_map(|text| text.split(';'));
        let mut named = cookies.filter_map(|cookie| cookie.trim().split_once('='));
        let (_, value) = named.find(|(name, _)| *name == NAME)?;
        // Java has quotes around it.
        let (session, number) = value.trim_matches('"').split_once('.')?;
        Some(Self {
            session: u64::from_str_radix(session, 16).ok()?,
            number: number.parse().ok()?,
        })
    }

    fn cookie(self) -> String {
        format!("{NAME}={:016x}.{}", self.session, self.number)
    }
}

/// What the client says that it is in, of a request that was admitted.
pub(super) fn believed(extensions: &Extensions) -> Option<TransactionMark> {
    extensions.get::<TransactionMark>().copied()
}

/// What a client is told that believes to be in a transaction.
pub(super) fn lost() -> Status {
    Status::aborted(
        "the server has lost the session in which the transaction was begun; nothing of it remains, begin it again",
    )
}

/// Has a client forget what it was told, with the answer that ends its session.
pub(super) fn forget_with<T>(answer: &mut Response<T>) {
    if let Ok(cookie) = MetadataValue::try_from(forget()) {
        answer.metadata_mut().insert(SET_COOKIE.as_str(), cookie);
    }
}

/// What has a client forget what it was told.
fn forget() -> String {
    format!("{NAME}=; Max-Age=0")
}

impl State {
    /// The session of a request that was admitted, for a statement, or what one would be asked about.
    ///
    /// # Errors
    /// ABORTED where its client is in a transaction that nobody here knows: it is told so once.
    pub(super) fn session_of_statement(
        &self,
        extensions: &Extensions,
    ) -> Result<Arc<ClientSession>, Status> {
        let Some(mark) = believed(extensions) else {
            return self.session(extensions);
        };
        // A connection that was made anew begins a session beside the one that it had, whose end may not be
        // noticed yet. One that was there may give back what another one was told: drivers share it.
        let is_new = !session_key(extensions).is_some_and(|key| self.sessions.is_open(key));
        let session = self.session(extensions);
        if let Ok(session) = &session
            && !session.session.is_in_transaction()
            && (is_new || !self.sessions.is_known(mark))
            && self.sessions.note_told(mark)
        {
            return Err(lost());
        }
        session
    }

    /// Tells a client with an answer which transaction it is in now, or that it is in none any more:
    /// `believed` is what it said.
    pub(super) fn tell_transaction(
        &self,
        key: &str,
        believed: Option<TransactionMark>,
        headers: &mut HeaderMap,
    ) {
        let Some(session) = self.sessions.peek(key) else {
            return;
        };
        let cookie = match (session.transaction_mark(), believed) {
            (Some(mark), _) if believed != Some(mark) => mark.cookie(),
            // Drivers read cookies of answers, and some of them none of errors.
            (None, Some(mark)) if mark.session == session.mark || self.sessions.was_told(mark) => {
                forget()
            }
            _ => return,
        };
        if let Ok(cookie) = HeaderValue::try_from(cookie) {
            headers.append(SET_COOKIE, cookie);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_give_back_is_what_they_were_told() {
        let mark = TransactionMark {
            session: 0xfe_0000_0001,
            number: 12,
        };
        let given = |cookies: &[&str]| {
            let mut headers = HeaderMap::new();
            for cookie in cookies {
                headers.append(COOKIE, cookie.parse().unwrap());
            }
            TransactionMark::of(&headers)
        };
        let cookie = mark.cookie();
        assert_eq!(given(&[&cookie]), Some(mark));
        assert_eq!(given(&["a=b", &format!("c=d; {cookie};e=f")]), Some(mark));
        let quoted = cookie.replace('=', "=\"") + "\"";
        assert_eq!(given(&[&quoted]), Some(mark));
        for other in [
            "",
            "flashmesh-transaction",
            "flashmesh-transaction=",
            "flashmesh-transaction=1",
            "flashmesh-transaction=x.1",
            "flashmesh-transaction=1.-1",
            "other=1.1",
        ] {
            assert_eq!(given(&[other]), None, "{other}");
        }
    }
}
