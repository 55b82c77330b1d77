//! The caller's role, from the subject of its certificate.
//!
//! The role comes from the organisation (O), never from the name alone: a certificate for the name `node:a` that is not
//! in the group of nodes gives no rights.

use std::fmt;

/// The subject of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateSubject {
    pub common_name: String,
    pub organizations: Vec<String>,
}

impl CertificateSubject {
    fn is_in(&self, organization: &str) -> bool {
        self.organizations.iter().any(|o| o == organization)
    }
}

/// The organisations of node certificates, each with the prefix of the common name. Kubernetes tools issue the second.
const NODE_GROUPS: [(&str, &str); 2] = [("muster:nodes", "node:"), ("system:nodes", "system:node:")];
const CONTROLLERS: &str = "muster:controllers";
const SCHEDULERS: &str = "muster:schedulers";
const ADMINS: [&str; 2] = ["muster:admins", "system:masters"];
const VIEWERS: &str = "muster:viewers";

/// The caller's role, as authorisation sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// The agent of the node of this name, which is never empty.
    Node(String),
    Controller,
    Scheduler,
    Admin,
    Viewer,
    /// A caller without rights; the text names it, for the log and the refusal.
    Unknown(String),
}

impl Caller {
    /// The role of a certificate's holder.
    ///
    /// A node certificate that also has other organisations is a node's and has no other rights.
    pub fn from_subject(subject: &CertificateSubject) -> Caller {
        for (group, prefix) in NODE_GROUPS {
            if let Some(name) = subject.common_name.strip_prefix(prefix)
                && subject.is_in(group)
            {
                return if name.is_empty() { unknown(subject) } else { Caller::Node(name.to_owned()) };
            }
        }
        if subject.is_in(CONTROLLERS) {
            Caller::Controller
        } else if subject.is_in(SCHEDULERS) {
            Caller::Scheduler
        } else if ADMINS.iter().any(|group| subject.is_in(group)) {
            Caller::Admin
        } else if subject.is_in(VIEWERS) {
            Caller::Viewer
        } else {
            unknown(subject)
        }
    }
}

fn unknown(subject: &CertificateSubject) -> Caller {
    Caller::Unknown(format!("CN={} O={}", subject.common_name, subject.organizations.join(",")))
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caller::Node(name) => write!(f, "node:{name}"),
            Caller::Controller => f.write_str("controller"),
            Caller::Scheduler => f.write_str("scheduler"),
            Caller::Admin => f.write_str("admin"),
            Caller::Viewer => f.write_str("viewer"),
            Caller::Unknown(who) => write!(f, "unknown caller ({who})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_in_other_groups_too_stays_a_node() {
        let organizations = vec!["muster:admins".to_owned(), "muster:nodes".to_owned()];
        let subject = CertificateSubject { common_name: "node:a".to_owned(), organizations };
        assert_eq!(Caller::from_subject(&subject), Caller::Node("a".to_owned()));
    }
}
