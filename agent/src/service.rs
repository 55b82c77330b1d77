//! AgentService: the agent's status, its workloads, the machine's shutdown, and the insides of containers.

mod exec_stream;
mod instances;
mod log_stream;

use std::sync::Arc;

use jiff::Timestamp;
use muster_grpc::agent_service_server::AgentService;
use muster_proto::identity::Caller;
use muster_proto::pb;
use muster_rpc::clock::SharedClock;
use muster_rpc::identity::{caller, denied, requester};
use muster_rpc::shutdown::Shutdown;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::spawn_blocking;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Extensions, Request, Response, Status, Streaming};

use self::exec_stream::{ExecStream, terminal_size};
use self::instances::Wanted;
use self::log_stream::LogStream;

use crate::identity::Identity;
use crate::runtime::process::ProcessRuntime;
use crate::runtime::process::exec::ExecSpec;
use crate::runtime::{Runtime, RuntimeError, State};
use crate::shared_state::SharedState;
use crate::shutdown::{MachineShutdown, ShutdownError};

/// The names of the services, for health.
pub const NAMES: [&str; 1] = ["muster.v1.AgentService"];

/// Logs that are read at once, and commands that run in containers at once: each holds descriptors and memory.
const MAX_LOG_STREAMS: usize = 256;
const MAX_COMMANDS: usize = 64;

/// Answers from the shared state, begins or cancels the machine's shutdown, and reaches into containers.
pub struct Service {
    pub shared: Arc<SharedState>,
    pub identity: Identity,
    pub limitations: Vec<String>,
    pub machine_shutdown: MachineShutdown,
    pub clock: SharedClock,
    pub containers: Containers,
}

/// What calls about single containers need.
pub struct Containers {
    pub runtime: Arc<ProcessRuntime>,
    /// Whether callers show who they are. If they do not, though the agent itself does, any user of the machine could pass
    /// for an administrator.
    pub knows_callers: bool,
    pub stop: Shutdown,
    log_streams: Arc<Semaphore>,
    commands: Arc<Semaphore>,
}

impl Containers {
    pub fn new(runtime: Arc<ProcessRuntime>, knows_callers: bool, stop: Shutdown) -> Containers {
        let [log_streams, commands] =
            [MAX_LOG_STREAMS, MAX_COMMANDS].map(|places| Arc::new(Semaphore::new(places)));
        Containers { runtime, knows_callers, stop, log_streams, commands }
    }

    fn ensure_callers_are_known(&self) -> Result<(), Status> {
        if self.knows_callers {
            return Ok(());
        }
        Err(Status::failed_precondition(
            "this agent serves without TLS, but calls the store with it: give it --tls-cert, --tls-key and \
             --tls-client-ca, so that it knows who reads logs and runs commands",
        ))
    }
}

fn place(places: &Arc<Semaphore>, what: &str, most: usize) -> Result<OwnedSemaphorePermit, Status> {
    Arc::clone(places).try_acquire_owned().map_err(|_| {
        Status::resource_exhausted(format!("{most} {what} already; try again when one of them has ended"))
    })
}

impl Service {
    /// Whether the caller may begin or cancel a shutdown: all pods of the machine depend on it.
    fn ensure_may_steer(&self, extensions: &Extensions) -> Result<(), Status> {
        let own = &self.identity.name;
        match caller(extensions) {
            Caller::Admin => Ok(()),
            Caller::Node(name) if name == own.as_str() => Ok(()),
            other => Err(denied(format!(
                "{other} may not begin or cancel the shutdown of node {own}: only an administrator or the node \
                 itself may"
            ))),
        }
    }

    /// Whether the caller may read the agent's state: it shows which pods run on the machine, of every namespace.
    fn ensure_may_read(&self, extensions: &Extensions) -> Result<(), Status> {
        let own = &self.identity.name;
        match caller(extensions) {
            Caller::Admin | Caller::Viewer => Ok(()),
            Caller::Node(name) if name == own.as_str() => Ok(()),
            other => Err(denied(format!(
                "{other} may not read the state of the agent of node {own}: only an administrator, a viewer or the \
                 node itself may"
            ))),
        }
    }
}

impl Service {
    /// Whether the caller may run commands in containers.
    fn ensure_may_exec(&self, extensions: &Extensions) -> Result<(), Status> {
        let own = &self.identity.name;
        match caller(extensions) {
            Caller::Admin => Ok(()),
            Caller::Node(name) if name == own.as_str() => Ok(()),
            other => Err(denied(format!(
                "{other} may not run commands in containers of node {own}: only an administrator or the node itself may"
            ))),
        }
    }
}

impl From<ShutdownError> for Status {
    fn from(error: ShutdownError) -> Status {
        Status::failed_precondition(error.to_string())
    }
}

#[tonic::async_trait]
impl AgentService for Service {
    async fn get_agent(
        &self,
        request: Request<pb::GetAgentRequest>,
    ) -> Result<Response<pb::GetAgentResponse>, Status> {
        self.ensure_may_read(request.extensions())?;
        let agent = self.shared.status().clone();
        let (computed, computed_at) = agent.computed.unzip();
        let (status, status_at, status_version) = match agent.status {
            Some((status, at, version)) => (Some(status), Some(at), version),
            None => (None, None, 0),
        };
        let (renewal_at, renewal_version) = agent.renewal.unzip();
        Ok(Response::new(pb::GetAgentResponse {
            node_name: self.identity.name.to_string(),
            node_uid: agent.node_uid.map(|uid| uid.to_string()).unwrap_or_default(),
            incarnation: self.identity.incarnation.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            registered: agent.registered,
            computed_status: computed.map(Into::into),
            computed_at: computed_at.map(timestamp),
            acknowledged_status: status.map(Into::into),
            acknowledged_status_at: status_at.map(timestamp),
            acknowledged_status_version: status_version,
            acknowledged_renewal_at: renewal_at,
            acknowledged_renewal_version: renewal_version.unwrap_or_default(),
            store: agent.store,
            limitations: self.limitations.clone(),
            shutting_down_since: self.machine_shutdown.state().borrow().since.map(timestamp),
        }))
    }

    async fn list_workloads(
        &self,
        request: Request<pb::ListWorkloadsRequest>,
    ) -> Result<Response<pb::ListWorkloadsResponse>, Status> {
        self.ensure_may_read(request.extensions())?;
        let workloads = self.shared.status().workloads.clone();
        Ok(Response::new(pb::ListWorkloadsResponse { workloads }))
    }

    async fn begin_shutdown(
        &self,
        request: Request<pb::BeginShutdownRequest>,
    ) -> Result<Response<pb::BeginShutdownResponse>, Status> {
        self.ensure_may_steer(request.extensions())?;
        let (since, longest) = self.machine_shutdown.begin(self.clock.wall())?;
        tracing::info!(%since, "the machine is about to shut down");
        let (began_at, longest) = (Some(timestamp(since)), longest.try_into().ok());
        Ok(Response::new(pb::BeginShutdownResponse { began_at, longest }))
    }

    async fn cancel_shutdown(
        &self,
        request: Request<pb::CancelShutdownRequest>,
    ) -> Result<Response<pb::CancelShutdownResponse>, Status> {
        self.ensure_may_steer(request.extensions())?;
        let began_at = self.machine_shutdown.cancel()?;
        if began_at.is_some() {
            tracing::info!("the shutdown was cancelled; pods that are stopping still stop");
        }
        Ok(Response::new(pb::CancelShutdownResponse { began_at: began_at.map(timestamp) }))
    }

    type ReadLogStream = ReceiverStream<Result<pb::ReadLogResponse, Status>>;

    async fn read_log(
        &self,
        request: Request<pb::ReadLogRequest>,
    ) -> Result<Response<Self::ReadLogStream>, Status> {
        self.ensure_may_read(request.extensions())?;
        self.containers.ensure_callers_are_known()?;
        let request = request.into_inner();
        Wanted { node: &request.node, namespace: "", pod: "", container: "" }
            .check_node(&self.identity.name)?;
        let stream = LogStream {
            runtime: Arc::clone(&self.containers.runtime),
            shared: Arc::clone(&self.shared),
            request,
            stop: self.containers.stop.clone(),
            _permit: place(&self.containers.log_streams, "logs are being read", MAX_LOG_STREAMS)?,
        };
        let begin = stream.begin(&self.clock).await?;
        let (sender, receiver) = mpsc::channel(log_stream::QUEUE);
        tokio::spawn(stream.run(begin, sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    type ExecStream = ReceiverStream<Result<pb::ExecResponse, Status>>;

    async fn exec(
        &self,
        request: Request<Streaming<pb::ExecRequest>>,
    ) -> Result<Response<Self::ExecStream>, Status> {
        self.ensure_may_exec(request.extensions())?;
        self.containers.ensure_callers_are_known()?;
        let requester = requester(request.extensions());
        let mut requests = request.into_inner();
        let first = requests.message().await?.and_then(|first| first.request);
        let Some(pb::exec_request::Request::Start(start)) = first else {
            return Err(Status::invalid_argument("the first message must be start: what to run, and where"));
        };
        let wanted = Wanted {
            node: &start.node,
            namespace: &start.namespace,
            pod: &start.pod,
            container: &start.container,
        };
        wanted.check_node(&self.identity.name)?;
        let permit = place(&self.containers.commands, "commands run in containers", MAX_COMMANDS)?;
        let runtime = Arc::clone(&self.containers.runtime);
        let mut instances = wanted.instances(runtime.list())?;
        let running = instances.pop().filter(|newest| matches!(newest.state, State::Running(_)));
        let container = running.map(|newest| newest.id).ok_or_else(|| {
            Status::failed_precondition(format!("no container of pod {} runs now", start.pod))
        })?;
        // Not its arguments, which may hold secrets.
        let program = start.command.first().map(String::as_str).unwrap_or_default();
        tracing::info!(%requester, pod = %start.pod, %container, program, "a command is run in a container");
        let spec = ExecSpec {
            command: start.command,
            has_input: start.stdin,
            terminal: start.tty.then(|| terminal_size(start.terminal_size.unwrap_or_default())),
        };
        let (of, id) = (Arc::clone(&runtime), container.clone());
        let handle = tokio::runtime::Handle::current();
        let begun = spawn_blocking(move || {
            let _inside = handle.enter();
            of.exec(&id, &spec)
        });
        let exec = begun.await.map_err(|error| Status::internal(error.to_string()))?.map_err(refusal)?;
        let stop = self.containers.stop.clone();
        let stream = ExecStream { runtime, container, exec, requests, stop, _permit: permit };
        let (sender, receiver) = mpsc::channel(exec_stream::QUEUE);
        tokio::spawn(stream.run(sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
}

/// Why a command was not started.
fn refusal(error: RuntimeError) -> Status {
    match error {
        RuntimeError::NoCommand(_) => Status::invalid_argument("command must name a program"),
        RuntimeError::Unknown(_) | RuntimeError::Starting(_) | RuntimeError::Ended(_) => {
            Status::failed_precondition(error.to_string())
        }
        RuntimeError::Machine { doing, source } => Status::internal(format!("could not {doing}: {source}")),
        other => Status::internal(other.to_string()),
    }
}
