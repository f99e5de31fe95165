//! Where tables outside the database may lie: files of the machine, `https://`, `s3://`, `gs://`.

use std::sync::Arc;

use datafusion::common::{DataFusionError, exec_err};
use datafusion::error::Result;
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use object_store::{ObjectStore, parse_url_opts};
use url::{Position, Url};

/// The stores that an admin's sessions reach: the machine's files, and a store of a URL's scheme
/// and host from the moment when it is first named. Credentials and regions come from the
/// environment (`AWS_ACCESS_KEY_ID`, `GOOGLE_SERVICE_ACCOUNT`, …), as the tools of their makers
/// have it.
#[derive(Debug, Default)]
pub(crate) struct NamedStores {
    known: DefaultObjectStoreRegistry,
}

impl ObjectStoreRegistry for NamedStores {
    fn register_store(
        &self,
        url: &Url,
        store: Arc<dyn ObjectStore>,
    ) -> Option<Arc<dyn ObjectStore>> {
        self.known.register_store(url, store)
    }

    fn deregister_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        self.known.deregister_store(url)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        if let Ok(store) = self.known.get_store(url) {
            return Ok(store);
        }
        // The names of the options are those of the variables in lower case.
        let options = std::env::vars_os().filter_map(|(name, value)| {
            Some((
                name.to_str()?.to_ascii_lowercase(),
                value.into_string().ok()?,
            ))
        });
        let (store, _) = parse_url_opts(url, options).map_err(|error| {
            DataFusionError::Execution(format!(
                "'{}' can't be reached: {error}; file://, https://, s3:// and gs:// are known",
                &url[..Position::BeforePath]
            ))
        })?;
        let store: Arc<dyn ObjectStore> = Arc::from(store);
        self.known.register_store(url, Arc::clone(&store));
        Ok(store)
    }
}

/// The stores that all others' sessions reach: none. Whatever plan reads or writes a file fails
/// here, should it have passed all else.
#[derive(Debug)]
pub(crate) struct NoStores;

impl ObjectStoreRegistry for NoStores {
    fn register_store(&self, _: &Url, _: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        None
    }

    fn get_store(&self, _: &Url) -> Result<Arc<dyn ObjectStore>> {
        exec_err!("permission denied: files and object stores are an admin's to read and write")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_made_when_it_is_first_named() {
        let stores = NamedStores::default();
        for url in [
            "file:///tmp",
            "https://example.com/a.csv",
            "s3://bucket/key",
        ] {
            let url = Url::parse(url).unwrap();
            let store = stores.get_store(&url).unwrap();
            assert!(
                Arc::ptr_eq(&store, &stores.get_store(&url).unwrap()),
                "{url}"
            );
        }
        let error = stores.get_store(&Url::parse("gopher://host/x").unwrap());
        assert!(error.unwrap_err().to_string().contains("gopher://host"));
    }

    #[test]
    fn others_reach_none() {
        for url in ["file:///etc/passwd", "s3://bucket/key"] {
            assert!(NoStores.get_store(&Url::parse(url).unwrap()).is_err());
        }
    }
}
