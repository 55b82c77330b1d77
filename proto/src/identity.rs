//! The role of a caller or a server, from the subject of its certificate.
//!
//! The role comes from the organisation (O), never from the name alone: a certificate for the name `node:a` that is not
//! in the group of nodes gives no rights. In the same way a client accepts only a server whose organisation is that of
//! the part it wants to call: all certificates come from one authority, and a node must not pass for the store.

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

    /// Whether the holder is a store, and nothing else: the only caller that may name another caller, for which it
    /// forwards a call. A certificate that is also a node's is a node's.
    pub fn is_store(&self) -> bool {
        self.is_in(STORES) && !matches!(Caller::from_subject(self), Caller::Node(_))
    }
}

/// The organisations of node certificates, each with the prefix of the common name. Kubernetes tools issue the second.
const NODE_GROUPS: [(&str, &str); 2] = [("muster:nodes", "node:"), ("system:nodes", "system:node:")];
const STORES: &str = "muster:stores";
const CONTROLLERS: &str = "muster:controllers";
const SCHEDULERS: &str = "muster:schedulers";
/// The certificate of `muster up`: store, controller and agent in one process, which calls as an administrator.
const ALL_IN_ONE: &str = "muster:up";
const ADMINS: [&str; 3] = ["muster:admins", "system:masters", ALL_IN_ONE];
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

/// The part of Muster that a client wants to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerRole {
    Store,
    Controller,
    Agent,
    /// A cloud plug-in is not a part of Muster: it has an organisation of its own, or runs with the controller's
    /// certificate.
    CloudPlugin,
}

/// A server that is not what the client wants to call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("presents a certificate of role {found}, expected {expected}")]
pub struct WrongServerRole {
    /// The organisations of the server's certificate.
    pub found: String,
    pub expected: ServerRole,
}

impl ServerRole {
    /// Checks that a server with this certificate has the role.
    ///
    /// A node's certificate is that of an agent and nothing else, whatever other organisations it has.
    ///
    /// # Errors
    /// When it has another role, or none.
    pub fn check(self, subject: &CertificateSubject) -> Result<(), WrongServerRole> {
        let caller = Caller::from_subject(subject);
        let is_node = matches!(caller, Caller::Node(_));
        let holds = match self {
            ServerRole::Store => !is_node && (subject.is_in(STORES) || subject.is_in(ALL_IN_ONE)),
            ServerRole::Controller => !is_node && (subject.is_in(CONTROLLERS) || subject.is_in(ALL_IN_ONE)),
            ServerRole::Agent => is_node || subject.is_in(ALL_IN_ONE),
            ServerRole::CloudPlugin => matches!(caller, Caller::Controller | Caller::Unknown(_)),
        };
        if holds {
            return Ok(());
        }
        let found = match subject.organizations.as_slice() {
            [] => "none".to_owned(),
            organizations => organizations.join(", "),
        };
        Err(WrongServerRole { found, expected: self })
    }
}

/// The organisation that the certificate of such a server has.
impl fmt::Display for ServerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ServerRole::Store => STORES,
            ServerRole::Controller => CONTROLLERS,
            ServerRole::Agent => NODE_GROUPS[0].0,
            ServerRole::CloudPlugin => "an organisation that is not of Muster, or muster:controllers",
        })
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

    #[test]
    fn only_a_store_may_name_another_caller() {
        for (common_name, organizations, expected) in [
            ("store-1", &["muster:stores"][..], true),
            ("node:a", &["muster:nodes", "muster:stores"], false),
            ("up", &["muster:up"], false),
            ("eva", &["muster:admins"], false),
            ("c1", &["muster:controllers"], false),
            ("store", &[], false),
            ("store", &["MUSTER:STORES"], false),
        ] {
            let organizations = organizations.iter().map(|&text| text.to_owned()).collect();
            let subject = CertificateSubject { common_name: common_name.to_owned(), organizations };
            assert_eq!(subject.is_store(), expected, "{subject:?}");
        }
    }

    #[test]
    fn a_server_has_the_role_of_its_organisation_only() {
        use ServerRole::{Agent, CloudPlugin, Controller, Store};
        for (common_name, organizations, expected) in [
            ("store", &["muster:stores"][..], &[Store, CloudPlugin][..]),
            ("anything", &["muster:stores"], &[Store, CloudPlugin]),
            ("c1", &["muster:controllers"], &[Controller, CloudPlugin]),
            ("node:a", &["muster:nodes"], &[Agent]),
            ("system:node:a", &["system:nodes"], &[Agent]),
            ("node:a", &["muster:nodes", "muster:stores", "muster:controllers"], &[Agent]),
            ("store", &["muster:nodes"], &[CloudPlugin]),
            ("eva", &["muster:admins"], &[]),
            ("v1", &["muster:viewers"], &[]),
            ("s1", &["muster:schedulers"], &[]),
            ("up", &["muster:up"], &[Store, Controller, Agent]),
            ("store", &[], &[CloudPlugin]),
            ("store", &["MUSTER:STORES"], &[CloudPlugin]),
            ("aws", &["example"], &[CloudPlugin]),
        ] {
            let organizations = organizations.iter().map(|&text| text.to_owned()).collect();
            let subject = CertificateSubject { common_name: common_name.to_owned(), organizations };
            let held: Vec<ServerRole> = [Store, Controller, Agent, CloudPlugin]
                .into_iter()
                .filter(|role| role.check(&subject).is_ok())
                .collect();
            assert_eq!(held, expected, "{subject:?}");
        }
    }

    #[test]
    fn a_server_with_another_role_is_named_by_its_organisations() {
        let refused = |organizations: &[&str]| {
            let organizations = organizations.iter().map(|&text| text.to_owned()).collect();
            let subject = CertificateSubject { common_name: "node:a".to_owned(), organizations };
            ServerRole::Store.check(&subject).unwrap_err().to_string()
        };
        assert_eq!(
            refused(&["muster:nodes"]),
            "presents a certificate of role muster:nodes, expected muster:stores"
        );
        assert_eq!(refused(&[]), "presents a certificate of role none, expected muster:stores");
    }
}
