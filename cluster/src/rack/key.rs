//! The secret of a rack.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Rack, RackError};

/// The secret that the nodes of a rack share, and nobody else has.
#[derive(Clone, PartialEq, Eq)]
pub struct RackKey([u8; RackKey::BYTES]);

impl RackKey {
    /// Its size. The file has twice as many hexadecimal digits.
    pub const BYTES: usize = 32;

    /// A key of these bytes, which are to be random.
    pub fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The secret.
    pub fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Writes a new key file, which only its owner may read.
    ///
    /// # Errors
    /// `Io`, also where the file is there: a key that is in use is never written over.
    pub fn write(&self, path: &Path) -> Result<(), RackError> {
        let mut text = String::with_capacity(2 * Self::BYTES + 1);
        for byte in self.0 {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(path);
        let written = file.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        written.map_err(|source| failed(path, source))
    }

    fn read(path: &Path) -> Result<Self, RackError> {
        let metadata = std::fs::metadata(path).map_err(|source| failed(path, source))?;
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(refused(
                path,
                format!("others may read or write it (mode {mode:o}); chmod 600 it"),
            ));
        }
        let text = std::fs::read_to_string(path).map_err(|source| failed(path, source))?;
        let digits = text.trim_end();
        let wrong = || {
            let (need, has) = (2 * Self::BYTES, digits.chars().count());
            let why = format!("a key is {need} hexadecimal digits, and it has {has} characters");
            refused(path, why)
        };
        if digits.len() != 2 * Self::BYTES || !digits.bytes().all(|digit| digit.is_ascii_hexdigit())
        {
            return Err(wrong());
        }
        let mut bytes = [0; Self::BYTES];
        for (at, byte) in bytes.iter_mut().enumerate() {
            let digits = &digits[2 * at..2 * at + 2];
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        if bytes.iter().all(|&byte| byte == bytes[0]) {
            return Err(refused(path, "all its bytes are the same".into()));
        }
        Ok(Self(bytes))
    }
}

/// Nothing of the secret gets into a log.
impl std::fmt::Debug for RackKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RackKey")
    }
}

impl Rack {
    /// Reads the rack's secret.
    ///
    /// # Errors
    /// `Invalid` where the rack file names none; `Key` where others may read the file, or it has no
    /// key; `Io`.
    pub fn key(&self) -> Result<RackKey, RackError> {
        match &self.key_file {
            Some(path) => RackKey::read(path),
            None => Err(RackError::Invalid(
                "it names no file with the rack's key; write e.g. key = \"rack.key\" before its \
                 nodes, and put 64 random hexadecimal digits there (openssl rand -hex 32)"
                    .into(),
            )),
        }
    }
}

fn failed(path: &Path, source: std::io::Error) -> RackError {
    let path = path.to_path_buf();
    RackError::KeyIo { path, source }
}

fn refused(path: &Path, why: String) -> RackError {
    let path: PathBuf = path.to_path_buf();
    RackError::Key { path, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "[[node]]\nid = 0\nname = 'a'\n[[node.card]]\nid = 0\npath = 'a'\n";

    fn with_key(text: &str, mode: u32) -> Result<RackKey, RackError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let rack = folder.path().join("rack.toml");
        std::fs::write(&rack, format!("key = 'secret'\n{NODE}")).unwrap();
        Rack::load(&rack).unwrap().key()
    }

    #[test]
    fn what_is_written_reads_back_and_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rack.key");
        let key = RackKey::new(std::array::from_fn(|at| at as u8));
        key.write(&file).unwrap();
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(RackKey::read(&file).unwrap(), key);
        assert!(key.write(&file).is_err());
        assert_eq!(format!("{key:?}"), "RackKey");
    }

    #[test]
    fn keys_that_are_none_are_refused() {
        let good = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n";
        assert_eq!(with_key(good, 0o600).unwrap().as_bytes()[1], 0x11);
        assert!(with_key(&good.to_uppercase(), 0o400).is_ok());
        let message = |text: &str, mode| with_key(text, mode).unwrap_err().to_string();
        assert!(message(good, 0o640).contains("others may read or write it (mode 640)"));
        assert!(message(&good[2..], 0o600).contains("64 hexadecimal digits, and it has 62"));
        assert!(message("", 0o600).contains("has 0 characters"));
        assert!(message(&good.replace('a', "g"), 0o600).contains("hexadecimal"));
        assert!(message(&"é".repeat(32), 0o600).contains("hexadecimal"));
        assert!(message(&"+1".repeat(32), 0o600).contains("hexadecimal"));
        assert!(message(&"0".repeat(64), 0o600).contains("all its bytes are the same"));
        let none = Rack::parse(NODE).unwrap().key().unwrap_err().to_string();
        assert!(none.contains("names no file"), "{none}");
    }
}
