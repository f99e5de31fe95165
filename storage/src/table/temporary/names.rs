//! What temporary tables are known by, to the state of a database too.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

/// The schema of temporary tables, as sessions call it.
pub const TEMPORARY_SCHEMA: &str = "temp";

/// What names of such schemas begin with.
pub const TEMPORARY_PREFIX: &str = "temp#";

/// Whether a schema has the temporary tables of a session.
pub fn is_temporary(schema: &str) -> bool {
    schema.starts_with(TEMPORARY_PREFIX)
}

/// What a session knows of its temporary tables.
#[derive(Debug, Default)]
pub(in crate::table) struct Temporary {
    /// Their schema: once it was made, though that may have been undone.
    pub schema: OnceLock<String>,
    /// The schemas in which they are looked for besides.
    pub homes: RwLock<HashMap<String, String>>,
}

/// Schemas of sessions that have ended, and when their tables are to be dropped.
#[derive(Debug, Default)]
pub(in crate::table) struct EndedSessions(Mutex<Vec<(Instant, String)>>);

impl EndedSessions {
    pub fn add(&self, schema: String) {
        self.add_after(Duration::ZERO, schema);
    }

    pub fn add_after(&self, rest: Duration, schema: String) {
        self.0.lock().push((Instant::now() + rest, schema));
    }

    pub fn take_due(&self) -> Vec<String> {
        let mut ended = self.0.lock();
        let now = Instant::now();
        let due = ended.extract_if(.., |(when, _)| *when <= now);
        due.map(|(_, schema)| schema).collect()
    }
}
