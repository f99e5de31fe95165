//! Files that stand where a table stands: by their names, or as the text of a call of `read_csv`, `glob` and the like.

use std::sync::{Arc, Weak};

use datafusion::catalog::{TableProvider, UrlTableFactory};
use datafusion::execution::SessionState;
use datafusion::prelude::SessionContext;
use flashmesh_macros::async_impl;
use parking_lot::{Mutex, RwLock};

use crate::clauses::{files_of_name, list_of_name};
use crate::files::{FileOptions, format_of, open, read};

/// Makes tables of names that look like files: `SELECT * FROM 'data/*.parquet'`.
///
/// A name without a path separator or a known ending is never looked up among the files, so that
/// a mistyped table name does not become the folder of that name.
#[derive(Debug, Default)]
pub(crate) struct FileTables {
    session: Mutex<Weak<RwLock<SessionState>>>,
}

impl FileTables {
    /// The session whose options apply.
    pub(crate) fn use_session(&self, session: Weak<RwLock<SessionState>>) {
        *self.session.lock() = session;
    }
}

#[async_impl]
impl UrlTableFactory for FileTables {
    async fn try_new(
        &self,
        name: &str,
    ) -> datafusion::error::Result<Option<Arc<dyn TableProvider>>> {
        if let Some(listed) = list_of_name(name) {
            let (list, paths) = listed?;
            let Some(session) = self.session.lock().upgrade() else {
                return Ok(None);
            };
            let state = session.read().clone();
            return Ok(Some(list.table(&paths, &state).await?));
        }
        let files = files_of_name(name).transpose()?;
        if files.is_none() && !name.contains(['/', '\\']) && format_of(name).is_none() {
            return Ok(None);
        }
        let Some(session) = self.session.lock().upgrade() else {
            return Ok(None);
        };
        let state = session.read().clone();
        let by_name = || (vec![name.to_string()], FileOptions::default());
        let (paths, options) = files.unwrap_or_else(by_name);
        Ok(Some(match options.need_a_query() {
            false => open(&paths, &options, None, &state).await?,
            true => {
                let context = SessionContext::new_with_state(state);
                read(&context, &paths, &options, None).await?.into_view()
            }
        }))
    }
}
