//! `muster doctor --live`: asks the servers and agents of a running fleet, and judges what they say.
//!
//! This file makes the calls. [`observation`] is what they found, [`judgement`] says what is wrong with it, and
//! [`report`] prints both; these three are pure.

mod judgement;
mod observation;
mod report;

use std::time::Duration;

use futures_util::future::join_all;
use muster_grpc::agent_service_client::AgentServiceClient;
use muster_grpc::store_service_client::StoreServiceClient;
use muster_proto::key::Key;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::wellknown::{CONTROLLER_LEASE, NODE_LEASE_NAMESPACE, SYSTEM_NAMESPACE};
use muster_rpc::clock::{Clock, SystemClock};
use muster_store_client::{ClientError, ListOptions};
use tonic::transport::Channel;

use self::judgement::{effective_settings, judge};
use self::observation::{
    AgentState, ControllerState, Hello, Observation, Offset, Records, Server, StoreState, Trouble,
};
use super::checks::{Finding, Level};
use super::forecast::{Settings, forecast};
use crate::connection::{Connection, Controller, Peer};
use crate::failure::{Exit, Failure};
use crate::print::document::{Language, document};
use crate::server_version::ask;
use crate::terminal::Terminal;
use crate::version::CLIENT;

/// Asks all servers and prints the report. `assumed` has the settings that no server gives.
pub(super) async fn run(
    connection: &Connection,
    agents: &[String],
    assumed: &Settings,
    certificates: Vec<Finding>,
    output: Option<Language>,
) -> Result<(), Failure> {
    let observation = observe(connection, agents).await?;
    let settings = effective_settings(&observation, assumed);
    let forecast = settings.as_ref().map(forecast);
    let mut findings = judge(&observation, settings.as_ref());
    findings.extend(certificates);
    findings.sort_by_key(|finding| finding.level);
    let terminal = Terminal::stdout();
    terminal.print(&match output {
        Some(language) => {
            document(&report::as_document(&observation, forecast.as_ref(), &findings), language, true)
        }
        None => report::text(&observation, forecast.as_ref(), &findings, terminal.paint, terminal.width),
    })?;
    outcome(&observation, &findings)
}

/// The exit code: the fleet is as it should be, or the report says what is not.
fn outcome(observation: &Observation, findings: &[Finding]) -> Result<(), Failure> {
    let problems = findings.iter().filter(|finding| finding.level <= Level::Unsafe).count();
    let exit = if observation.all_reached() { Exit::Failed } else { Exit::Unreachable };
    match problems {
        0 => Ok(()),
        count => Err(Failure::new(exit, format!("problems of this fleet: {count}"))
            .hint("the report above says for each of them what to do")),
    }
}

async fn observe(connection: &Connection, agents: &[String]) -> Result<Observation, Failure> {
    let stores = connection.store_channels()?;
    let controllers = connection.controllers()?;
    let agents = connection.agent_channels(agents)?;
    let stores = join_all(stores.into_iter().map(|(peer, channel)| store(connection, peer, channel)));
    let controllers = join_all(controllers.into_iter().map(|it| controller(connection, it)));
    let agents = join_all(agents.into_iter().map(|(peer, channel)| agent(connection, peer, channel)));
    let (stores, controllers, agents) = tokio::join!(stores, controllers, agents);
    // Without a store each of these calls would only say so once more.
    let is_led = stores.iter().any(|store| matches!(store.state, Ok(StoreState::Leads(_))));
    let records = if is_led { Some(records(connection).await) } else { None };
    Ok(Observation {
        client_version: CLIENT.to_owned(),
        stores,
        controllers,
        agents,
        records,
        now: SystemClock::new().wall(),
    })
}

async fn store(connection: &Connection, peer: Peer, channel: Channel) -> Server<StoreState> {
    let hello = hello(&peer, channel.clone(), connection.timeout()).await;
    let request = connection.with_timeout(pb::GetStoreStatusRequest {});
    let state = match &hello {
        Err(trouble) => Err(trouble.clone()),
        Ok(_) => match StoreServiceClient::new(channel).get_store_status(request).await {
            Ok(answer) => Ok(StoreState::Leads(answer.into_inner())),
            Err(status) if muster_store_client::is_for_another_store(&status) => {
                Ok(StoreState::StandsBy(status.message().to_owned()))
            }
            Err(status) => Err(trouble(&peer, status.into())),
        },
    };
    Server { address: peer.address().to_owned(), hello, state }
}

async fn controller(connection: &Connection, controller: Controller) -> Server<ControllerState> {
    let Controller { mut client, channel, peer, .. } = controller;
    let hello = hello(&peer, channel, connection.timeout()).await;
    let state = match &hello {
        Err(trouble) => Err(trouble.clone()),
        Ok(_) => match client.get_fleet(connection.with_timeout(pb::GetFleetRequest {})).await {
            Ok(answer) => {
                let pb::GetFleetResponse { fleet, settings } = answer.into_inner();
                Ok(ControllerState { fleet: fleet.unwrap_or_default(), settings })
            }
            Err(status) => Err(trouble(&peer, status.into())),
        },
    };
    Server { address: peer.address().to_owned(), hello, state }
}

async fn agent(connection: &Connection, peer: Peer, channel: Channel) -> Server<AgentState> {
    let hello = hello(&peer, channel.clone(), connection.timeout()).await;
    let request = connection.with_timeout(pb::GetAgentRequest {});
    let state = match &hello {
        Err(trouble) => Err(trouble.clone()),
        Ok(_) => match AgentServiceClient::new(channel).get_agent(request).await {
            Ok(answer) => {
                let pb::GetAgentResponse { node_name, registered, store, .. } = answer.into_inner();
                Ok(AgentState { node_name, registered, store })
            }
            Err(status) => Err(trouble(&peer, status.into())),
        },
    };
    Server { address: peer.address().to_owned(), hello, state }
}

/// Who answers at an address. It needs no rights, so what fails here is the address, the network or TLS.
async fn hello(peer: &Peer, channel: Channel, timeout: Duration) -> Result<Hello, Trouble> {
    let clock = SystemClock::new();
    let sent = clock.wall();
    let answer = ask(channel, timeout).await.map_err(|status| trouble(peer, status.into()))?;
    let offset = answer.date.map(|date| Offset::of(date, sent, clock.wall()));
    Ok(Hello { version: answer.version, store_id: answer.store_id, offset })
}

/// The nodes, their leases and the lease of the leading controller.
async fn records(connection: &Connection) -> Result<Records, Trouble> {
    let store = connection.store().map_err(Trouble::from)?;
    let namespace = Some(NODE_LEASE_NAMESPACE.parse().expect("a valid name"));
    let leader = Key {
        namespace: Some(SYSTEM_NAMESPACE.parse().expect("a valid name")),
        name: CONTROLLER_LEASE.parse().expect("a valid name"),
    };
    let (nodes, leases, leader) = tokio::join!(
        store.client.list::<Node>(ListOptions::default()),
        store.client.list::<Lease>(ListOptions { namespace, ..ListOptions::default() }),
        store.client.get::<Lease>(&leader),
    );
    let of_store = |error| trouble(&store.peer, error);
    let leader = match leader {
        Ok(lease) => Some(lease),
        Err(ClientError::NotFound(_)) => None,
        Err(error) => return Err(of_store(error)),
    };
    let (nodes, leases) = (nodes.map_err(of_store)?.records, leases.map_err(of_store)?.records);
    Ok(Records::of(&nodes, &leases, leader.as_ref()))
}

fn trouble(peer: &Peer, error: ClientError) -> Trouble {
    Trouble::from(peer.failure(error))
}
