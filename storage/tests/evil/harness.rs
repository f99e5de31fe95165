//! What "contained" means: an error that names the kernel and the reason, within two seconds; no
//! memory kept, and none beyond the limit; the sandbox serves the next query.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Float64Array, Int64Array};
use flashmesh_storage::accelerator::sandbox::{Sandbox, SandboxOptions};
use flashmesh_storage::kernel::Kernel;
use flashmesh_storage::memory::MemoryBudget;
use flashmesh_storage::{Result, StorageError};

use crate::guest::{Budget, context, package};

/// The longest that any call may take, with all that is around it.
const WATCHDOG: Duration = Duration::from_secs(20);
/// What a query may use.
pub const QUERY_BYTES: usize = 4 << 20;
/// Limits that manifests of the attacks ask for.
pub const LIMITS: &str = "[limits]\nmemory_bytes = 1048576\ntime_per_call_ms = 100\n";

/// The sandbox of the tests.
pub fn sandbox() -> Arc<Sandbox> {
    Arc::new(Sandbox::new(SandboxOptions::default()).unwrap())
}

/// Runs `attack` under the watchdog.
///
/// A test that hangs is ended by the panic here; the thread is left behind.
pub fn watched<R: Send + 'static>(name: &str, attack: impl FnOnce() -> R + Send + 'static) -> R {
    let (send, receive) = mpsc::channel();
    let thread = thread::spawn(move || {
        let _ = send.send(attack());
    });
    match receive.recv_timeout(WATCHDOG) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{name}: still running after {WATCHDOG:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("{name}: {:?}", thread.join().err()),
    }
}

/// That `error` is a kernel's, names `evil`, and says `reason` on one line.
pub fn assert_reason(name: &str, error: &StorageError, reason: &str) {
    let StorageError::Kernel { kernel, .. } = error else {
        panic!("{name}: another error: {error}");
    };
    let text = error.to_string();
    assert_eq!(kernel, "evil", "{name}: {text}");
    assert!(text.contains(reason), "{name}: {text}");
    assert!(!text.contains(char::is_control), "{name}: {text:?}");
    assert!(text.len() < 1000, "{name}: {text}");
}

/// That nothing is kept of `budget` and never more was taken than the limit and a tenth of it.
pub fn assert_given_back(name: &str, budget: &Budget) {
    assert_eq!(budget.used(), 0, "{name}: memory is kept");
    let peak = budget.peak.load(Ordering::SeqCst);
    assert!(peak <= budget.limit + budget.limit / 10, "{name}: {peak}");
}

/// That `sandbox` serves a query of somebody else.
pub fn assert_alive(name: &str, sandbox: &Sandbox) {
    let keys = "name = 'price_band'\nkind = 'filter'\n\
        signature = '(price DOUBLE, low DOUBLE CONSTANT, high DOUBLE CONSTANT) RETURNS BOOLEAN'\n";
    let package = package(keys, include_str!("../sandbox/price_band.wat"));
    let kernel = Kernel::new(package.clone(), sandbox.compile(&package, &[]).unwrap());
    let budget = Budget::new(QUERY_BYTES);
    let doubles = |values: &[f64]| Arc::new(Float64Array::from(values.to_vec())) as ArrayRef;
    let arguments = [doubles(&[1.0, 2.0, 3.0]), doubles(&[2.0]), doubles(&[2.5])];
    let found = kernel.evaluate(&arguments, 3, context(&budget)).unwrap();
    let found: Vec<Option<bool>> = found.as_boolean().iter().collect();
    assert_eq!(found, [Some(false), Some(true), Some(false)], "{name}");
    assert_given_back(name, &budget);
}

/// One attack: the kernel `evil` with `keys` of its manifest and a module.
pub struct Attack {
    pub name: &'static str,
    pub keys: String,
    pub wat: String,
    /// What the error says; empty: the call succeeds, and harms nobody.
    pub reason: &'static str,
}

/// A scalar kernel of 64-bit numbers whose function has this body.
pub fn scalar(name: &'static str, body: &str, reason: &'static str) -> Attack {
    Attack {
        name,
        keys: "kind = 'scalar'\nsignature = '(x BIGINT) RETURNS BIGINT'\n".to_owned(),
        wat: format!(
            "(module (memory (export \"memory\") 1)
              (func $evil (export \"evil\")
                (param $x i32) (param $rows i32) (param $result i32) {body}))"
        ),
        reason,
    }
}

/// Runs an attack by `call`, directly and in a query's session, and checks all that "contained"
/// means.
pub fn contained(
    sandbox: &Arc<Sandbox>,
    attack: Attack,
    call: impl Fn(&Kernel, &Arc<Budget>) -> Result<()> + Send + Sync + 'static,
) {
    let Attack {
        name,
        keys,
        wat,
        reason,
    } = attack;
    let its_budget = Budget::new(QUERY_BYTES);
    let call = Arc::new(call);
    for in_session in [false, true] {
        let (its_sandbox, budget) = (Arc::clone(sandbox), Arc::clone(&its_budget));
        let limits = if keys.contains("[limits]") {
            ""
        } else {
            LIMITS
        };
        let package = package(&format!("name = 'evil'\n{keys}{limits}"), &wat);
        let call = Arc::clone(&call);
        let outcome = watched(name, move || {
            let target = its_sandbox.compile(&package, &[])?;
            let mut kernel = Kernel::new(package, target);
            if in_session {
                let memory: Arc<dyn MemoryBudget> = budget.clone();
                kernel = kernel.for_query(&memory);
            }
            call(&kernel, &budget)
        });
        match (outcome, reason) {
            (Ok(()), "") => {}
            (Ok(()), _) => panic!("{name}: nothing was noticed"),
            (Err(error), "") => panic!("{name}: {error}"),
            (Err(error), reason) => assert_reason(name, &error, reason),
        }
        assert_given_back(name, &its_budget);
        assert_alive(name, sandbox);
    }
}

/// Evaluates a scalar kernel of 64-bit numbers over 100 rows.
pub fn evaluate(kernel: &Kernel, budget: &Arc<Budget>) -> Result<()> {
    let values = Int64Array::from_iter_values(0..100);
    let arguments = [Arc::new(values.clone()) as ArrayRef];
    let outcome = kernel.evaluate(&arguments, 100, context(budget));
    // A guest has copies of its arguments only.
    assert_eq!(arguments[0].as_ref(), &values as &dyn arrow::array::Array);
    outcome.map(|_| ())
}
