//! A store's audit log, as tests read it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tonic::{Code, Status};

use crate::{TIMEOUT, eventually};

/// The lines of an audit log. Clones share which of them were expected.
#[derive(Debug, Clone)]
pub struct AuditLog {
    path: PathBuf,
    expected: Arc<Mutex<BTreeSet<usize>>>,
}

impl AuditLog {
    pub fn at(path: &Path) -> AuditLog {
        AuditLog { path: path.to_owned(), expected: Arc::default() }
    }

    /// The lines that are in the file now.
    pub fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        // The last line may be half written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }

    /// Waits for a line; each line is found once.
    ///
    /// # Panics
    /// When there is none in time.
    pub async fn expect(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let what = format!("a line of the audit log for {what}");
        eventually(TIMEOUT, &what, || async {
            let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
            let lines = self.lines().into_iter().enumerate();
            let (index, line) = lines.into_iter().find(|(i, line)| !expected.contains(i) && is_it(line))?;
            expected.insert(index);
            Some(line)
        })
        .await
    }

    /// Waits for the line of a denial, if the status is one.
    ///
    /// # Panics
    /// When there is none in time, or one with a revision.
    pub async fn expect_denial(&self, status: &Status) {
        if !matches!(status.code(), Code::PermissionDenied | Code::Unauthenticated) {
            return;
        }
        let code = format!("{:?}", status.code());
        let is_it = |line: &Value| line["code"] == code && line["message"] == status.message();
        let line = self.expect(&format!("{status:?}"), is_it).await;
        assert!(line["revision"].is_null(), "a denied call has no revision: {line}");
        let caller = status.message().split(" may not ").next().unwrap_or_default();
        assert_eq!(line["caller"], caller, "{line}");
    }
}
