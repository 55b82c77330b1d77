//! What the page may do when it is started with `--allow-actions`: cordon, uncordon and drain.
//!
//! An action needs three things: the page's own origin, JSON as its content (which no form of another site can send),
//! and the token of this process. The token is in the printed address behind `#`, so it is never sent to a server in a
//! URL, and neither another user of this machine nor another program can read it from the page.

use axum::http::header::{CONTENT_TYPE, ORIGIN};
use axum::http::{HeaderMap, HeaderName};
use muster_manifest::schema::message_to_json;
use muster_proto::pb;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::connection::{Connection, OrFailure};
use crate::failure::{Exit, Failure};
use crate::same_origin::single;

/// The header with the token.
const TOKEN: HeaderName = HeaderName::from_static("muster-token");

/// The token of this process.
#[derive(Clone, Debug)]
pub(super) struct Token(String);

impl Token {
    pub(super) fn new() -> Token {
        Token(Uuid::new_v4().simple().to_string())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares in a time that does not depend on where the texts differ.
    fn is(&self, given: &str) -> bool {
        let (own, given) = (self.0.as_bytes(), given.as_bytes());
        own.len() == given.len() && own.iter().zip(given).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

/// Checks that a request to act comes from the page that this process serves.
pub(super) fn check(headers: &HeaderMap, token: Option<&Token>) -> Result<(), String> {
    let token = token.ok_or("this page is read-only: start it with --allow-actions")?;
    // That the origin is this one is checked for every request; a browser always sends it with a POST.
    single(headers, &ORIGIN)?.ok_or("the request has no Origin header")?;
    let content = single(headers, &CONTENT_TYPE)?.unwrap_or_default();
    if content != "application/json" {
        return Err("the content must be application/json".to_owned());
    }
    let given = single(headers, &TOKEN)?.unwrap_or_default();
    if token.is(given) {
        return Ok(());
    }
    Err("this window may not act: open the address that was printed at the start, with what stands behind #"
        .to_owned())
}

/// An action for a node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "action", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub(super) enum Action {
    Cordon {
        reason: String,
    },
    Uncordon {
        reason: String,
        /// Also take off the cordons of others.
        all: bool,
    },
    Drain {
        reason: String,
        /// Only answer what would happen.
        plan_only: bool,
        ignore_daemonsets: bool,
        force: bool,
        delete_emptydir_data: bool,
    },
}

impl Action {
    pub(super) fn parse(content: &[u8]) -> Result<Action, Failure> {
        let action: Action = serde_json::from_slice(content)
            .map_err(|error| Failure::usage(format!("the content is not an action: {error}")))?;
        if action.reason().trim().is_empty() {
            return Err(Failure::usage("reason: must say why, it is kept with the node"));
        }
        Ok(action)
    }

    fn reason(&self) -> &str {
        match self {
            Action::Cordon { reason } | Action::Uncordon { reason, .. } | Action::Drain { reason, .. } => {
                reason
            }
        }
    }

    /// Calls the controller that leads.
    pub(super) async fn perform(self, connection: &Connection, node: &str) -> Result<Value, Failure> {
        let controller = connection.controller().await?;
        let (mut client, name) = (controller.client.clone(), node.to_owned());
        match self {
            Action::Cordon { reason } => {
                let request = pb::CordonNodeRequest { name, reason, duration: None };
                client.cordon_node(controller.with_timeout(request)).await.or_failure(&controller.peer)?;
                Ok(json!({}))
            }
            Action::Uncordon { reason, all } => {
                let request = pb::UncordonNodeRequest { name, reason, all };
                client.uncordon_node(controller.with_timeout(request)).await.or_failure(&controller.peer)?;
                Ok(json!({}))
            }
            Action::Drain { reason, plan_only, ignore_daemonsets, force, delete_emptydir_data } => {
                let options = pb::DrainOptions {
                    ignore_daemonsets,
                    force,
                    delete_emptydir_data,
                    ..pb::DrainOptions::default()
                };
                let request =
                    pb::DrainNodeRequest { name, reason, options: Some(options), timeout: None, plan_only };
                let mut progress = controller.open_stream(client.drain_node(request)).await?;
                // The drain is stored by then and continues without us; the page follows it in the fleet.
                let first = tokio::time::timeout(controller.timeout, progress.message()).await;
                let first = first
                    .map_err(|_| Failure::new(Exit::Unreachable, "the controller has not answered in time"))?
                    .or_failure(&controller.peer)?
                    .ok_or_else(|| Failure::new(Exit::Failed, "the controller has ended the stream"))?;
                Ok(message_to_json("DrainNodeResponse", &first))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn an_action_needs_the_flag_the_origin_json_and_the_token() {
        let token = Token::new();
        let all =
            [(ORIGIN, "http://127.0.0.1:1"), (CONTENT_TYPE, "application/json"), (TOKEN, token.as_str())];
        assert_eq!(check(&headers(&all), Some(&token)), Ok(()));
        assert!(check(&headers(&all), None).unwrap_err().contains("--allow-actions"));
        for (missing, expected) in [(0, "Origin"), (1, "application/json"), (2, "behind #")] {
            let mut some = all.to_vec();
            some.remove(missing);
            let refused = check(&headers(&some), Some(&token)).unwrap_err();
            assert!(refused.contains(expected), "{refused}");
        }
        let other = Token::new();
        assert!(check(&headers(&all), Some(&other)).is_err(), "the token of another process");
        let mut form = all.to_vec();
        form[1].1 = "text/plain";
        assert!(check(&headers(&form), Some(&token)).is_err(), "what a form of another site can send");
    }

    #[test]
    fn an_action_is_read_or_refused_with_the_field() {
        let read = |text: &str| Action::parse(text.as_bytes()).map_err(|failure| failure.into_text().0);
        assert_eq!(
            read(r#"{"action":"cordon","reason":"new disk"}"#),
            Ok(Action::Cordon { reason: "new disk".to_owned() })
        );
        for (text, expected) in [
            (r#"{"action":"cordon","reason":" "}"#, "reason"),
            (r#"{"action":"cordon"}"#, "reason"),
            (r#"{"action":"reboot","reason":"x"}"#, "reboot"),
            (r#"{"action":"uncordon","reason":"x"}"#, "all"),
            (r#"{"action":"drain","reason":"x","planOnly":true}"#, "ignoreDaemonsets"),
            ("", "not an action"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(expected), "{text}: {refused}");
        }
    }
}
