//! When a password is looked at. Each look takes 19 MiB and tens of milliseconds by design: those
//! of one address take turns, who is wrong waits, and a password that was right is known again.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use sha2::Sha256;
use tokio::sync::Semaphore;
use tonic::Status;

/// Passwords that are looked at at once, whoever asks.
const VERIFYING: usize = 2;
/// Logins from one address that wait; more are refused.
const WAITING: usize = 64;
/// Wrong passwords for a user from one address before each further try waits.
const FREE_FAILURES: u32 = 3;
/// What the first such try waits; each further one twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(8);
/// Wrong passwords are forgotten after this.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);
/// Addresses, and users of each, whose wrong passwords are remembered.
const ADDRESSES: usize = 10_000;
const USERS: usize = 100;

/// Passwords that are known to be right; more are looked at anew.
const KNOWN: usize = 10_000;

/// What is known of logins.
pub(super) struct Logins {
    /// Drawn at start: what is kept of passwords is worth nothing elsewhere.
    key: [u8; 32],
    known: Mutex<HashSet<[u8; 32]>>,
    addresses: Mutex<HashMap<IpAddr, Address>>,
    verifying: Semaphore,
}

impl std::fmt::Debug for Logins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Logins")
    }
}

/// What is known of an address.
#[derive(Debug)]
struct Address {
    /// Its passwords are looked at one by one, so that all addresses have a turn.
    turn: Arc<Semaphore>,
    waiting: usize,
    failures: HashMap<String, Failures>,
}

#[derive(Debug)]
struct Failures {
    count: u32,
    last: Instant,
}

impl Failures {
    fn are_forgiven(&self) -> bool {
        self.last.elapsed() > FORGIVEN_AFTER
    }

    fn wait(&self) -> Duration {
        let beyond = self.count.saturating_sub(FREE_FAILURES);
        match beyond {
            0 => Duration::ZERO,
            beyond => (FIRST_WAIT * (1 << (beyond - 1).min(10))).min(LONGEST_WAIT),
        }
    }
}

impl Logins {
    pub fn new() -> Self {
        Self {
            key: rand::random(),
            known: Mutex::default(),
            addresses: Mutex::default(),
            verifying: Semaphore::new(VERIFYING),
        }
    }

    /// Whether the password fits the hash; `verify` looks, which takes long.
    ///
    /// # Errors
    /// For an address that has too many logins waiting.
    pub async fn check(
        &self,
        address: IpAddr,
        user: &str,
        password: &str,
        hash: &str,
        verify: impl FnOnce() -> bool + Send + 'static,
    ) -> Result<bool, Status> {
        let address = network(address);
        let waiting = Waiting::start(self, address)?;
        // Also before a password that is known: else it could be guessed as fast as one likes.
        let wait = self.wait(address, user);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        let digest = self.digest(user, password, hash);
        if self.known.lock().contains(&digest) {
            self.forgive(address, user);
            return Ok(true);
        }
        // Neither is closed ever.
        let _turn = waiting.turn.acquire().await;
        let _place = self.verifying.acquire().await;
        let right = tokio::task::spawn_blocking(verify).await.unwrap_or(false);
        match right {
            true => {
                let mut known = self.known.lock();
                // Those of users and passwords that are gone are among them.
                if known.len() >= KNOWN {
                    known.clear();
                }
                known.insert(digest);
                drop(known);
                self.forgive(address, user);
            }
            false => self.note_failure(address, user),
        }
        Ok(right)
    }

    fn digest(&self, user: &str, password: &str, hash: &str) -> [u8; 32] {
        let mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("a key of any length");
        let mac = [user, password, hash].iter().fold(mac, |mac, part| {
            mac.chain_update((part.len() as u64).to_le_bytes())
                .chain_update(part)
        });
        mac.finalize().into_bytes().into()
    }

    fn wait(&self, address: IpAddr, user: &str) -> Duration {
        let addresses = self.addresses.lock();
        let failures = addresses.get(&address).and_then(|a| a.failures.get(user));
        let failures = failures.filter(|failures| !failures.are_forgiven());
        failures.map_or(Duration::ZERO, Failures::wait)
    }

    fn note_failure(&self, address: IpAddr, user: &str) {
        let mut addresses = self.addresses.lock();
        let Some(address) = addresses.get_mut(&address) else {
            return;
        };
        if address.failures.len() >= USERS && !address.failures.contains_key(user) {
            let oldest = address.failures.iter().min_by_key(|(_, f)| f.last);
            let oldest = oldest.map(|(user, _)| user.clone());
            oldest.and_then(|user| address.failures.remove(&user));
        }
        let failures = address.failures.entry(user.to_string());
        let failures = failures.or_insert(Failures {
            count: 0,
            last: Instant::now(),
        });
        if failures.are_forgiven() {
            failures.count = 0;
        }
        failures.count += 1;
        failures.last = Instant::now();
    }

    fn forgive(&self, address: IpAddr, user: &str) {
        if let Some(address) = self.addresses.lock().get_mut(&address) {
            address.failures.remove(user);
        }
    }
}

/// A login that waits, or whose password is looked at.
struct Waiting<'a> {
    logins: &'a Logins,
    address: IpAddr,
    turn: Arc<Semaphore>,
}

impl<'a> Waiting<'a> {
    fn start(logins: &'a Logins, address: IpAddr) -> Result<Self, Status> {
        let mut addresses = logins.addresses.lock();
        if addresses.len() >= ADDRESSES {
            addresses.retain(|_, address| {
                address
                    .failures
                    .retain(|_, failures| !failures.are_forgiven());
                address.waiting > 0 || !address.failures.is_empty()
            });
        }
        let known = addresses.entry(address).or_insert_with(|| Address {
            turn: Arc::new(Semaphore::new(1)),
            waiting: 0,
            failures: HashMap::new(),
        });
        if known.waiting >= WAITING {
            return Err(Status::resource_exhausted(
                "too many logins from this address at once; try again in a moment",
            ));
        }
        known.waiting += 1;
        Ok(Self {
            logins,
            address,
            turn: Arc::clone(&known.turn),
        })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut addresses = self.logins.addresses.lock();
        if let Some(address) = addresses.get_mut(&self.address) {
            address.waiting -= 1;
            if address.waiting == 0 && address.failures.is_empty() {
                addresses.remove(&self.address);
            }
        }
    }
}

/// What one client can choose addresses from: all of IPv6's last 64 bits are one's own.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(address) => address.into(),
            None => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn a_right_password_is_looked_at_once() {
        let logins = Logins::new();
        let looks = Arc::new(AtomicUsize::new(0));
        let check = async |password: &'static str, hash: &str| {
            let looks = Arc::clone(&looks);
            let verify = move || {
                looks.fetch_add(1, Ordering::Relaxed);
                password == "right"
            };
            logins
                .check(HERE, "ada", password, hash, verify)
                .await
                .unwrap()
        };
        for (password, hash, right, looked) in [
            ("right", "1", true, 1),
            ("right", "1", true, 1),
            ("wrong", "1", false, 2),
            ("right", "1", true, 2),
            // Another password was set since.
            ("right", "2", true, 3),
        ] {
            assert_eq!(check(password, hash).await, right);
            assert_eq!(looks.load(Ordering::Relaxed), looked);
        }
    }

    #[tokio::test]
    async fn who_is_wrong_waits_longer_each_time_and_others_do_not() {
        let logins = Logins::new();
        let mut waits = Vec::new();
        let _waiting = Waiting::start(&logins, HERE).unwrap();
        for _ in 0..12 {
            waits.push(logins.wait(HERE, "ada"));
            logins.note_failure(HERE, "ada");
        }
        assert_eq!(waits[..4], [Duration::ZERO; 4]);
        assert!(waits[4..].is_sorted() && waits[4] == FIRST_WAIT && waits[11] == LONGEST_WAIT);
        assert_eq!(logins.wait(HERE, "bob"), Duration::ZERO);
        let elsewhere = "10.0.0.1".parse().unwrap();
        assert_eq!(logins.wait(elsewhere, "ada"), Duration::ZERO);
        logins.forgive(HERE, "ada");
        assert_eq!(logins.wait(HERE, "ada"), Duration::ZERO);
    }

    #[tokio::test]
    async fn an_address_has_so_many_logins_and_no_more() {
        let logins = Logins::new();
        let waiting: Vec<_> = (0..WAITING)
            .map(|_| Waiting::start(&logins, HERE))
            .collect();
        assert!(waiting.iter().all(Result::is_ok));
        assert!(Waiting::start(&logins, HERE).is_err());
        assert!(Waiting::start(&logins, "10.0.0.1".parse().unwrap()).is_ok());
        drop(waiting);
        assert!(logins.addresses.lock().is_empty());
    }

    #[test]
    fn one_network_of_ipv6_is_one_client() {
        let parse = |text: &str| network(text.parse().unwrap());
        assert_eq!(parse("2001:db8::1"), parse("2001:db8::ffff:1"));
        assert_ne!(parse("2001:db8::1"), parse("2001:db8:0:1::1"));
        assert_eq!(parse("::ffff:10.0.0.1"), parse("10.0.0.1"));
    }
}
