//! The client of a cloud plug-in.
//!
//! Only an answer counts: a plug-in that is unreachable, slow or broken says nothing about machines.

use std::time::Duration;

use muster_grpc::cloud_provider_service_client::CloudProviderServiceClient;
use muster_proto::identity::ServerRole;
use muster_proto::label::check_label_value;
use muster_proto::name::Name;
use muster_proto::node::NodeStatus;
use muster_proto::pb;
use muster_rpc::layers::trace::{Inject, InjectLayer};
use muster_rpc::tls::{ClientTls, Target};
use muster_rpc::trace::Part;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};
use tower::Layer;

use muster_controller_core::plan::{Answer, CloudMachine, CloudQuestion, Failure};

/// The address of the plug-in, and how to call it.
#[derive(Clone, Debug)]
pub struct CloudEndpoint {
    /// Such as `http://127.0.0.1:7700`. Without a scheme, `tls` decides on it.
    pub url: String,
    pub tls: Option<ClientTls>,
    /// How long an answer may take.
    pub deadline: Duration,
}

/// Why the plug-in's address cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("{url} is not the address of a cloud plug-in: {reason}")]
    Unusable { url: String, reason: String },
    #[error("{url} would be called without TLS although certificates are given: write https://")]
    InClear { url: String },
    #[error("{url} can only be called with a certificate, a key and an authority")]
    NoCertificate { url: String },
}

/// A client of a cloud plug-in. Clones share their connection, which is made when first needed.
#[derive(Clone, Debug)]
pub struct CloudClient {
    service: CloudProviderServiceClient<Inject<Channel>>,
    deadline: Duration,
}

impl CloudClient {
    /// A client of the plug-in at that address. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub fn connect(endpoint: &CloudEndpoint) -> Result<CloudClient, EndpointError> {
        let target = target(endpoint)?;
        let channel = InjectLayer.layer(target.connect_lazy()).to(target.uri()).of(Some(Part::CONTROLLER));
        let service = CloudProviderServiceClient::new(channel);
        Ok(CloudClient { service, deadline: endpoint.deadline })
    }

    /// Asks about the machine of that node.
    ///
    /// # Errors
    /// [`Failure::Gone`] when the plug-in knows no such machine; [`Failure::Refused`] when no retry will help or the
    /// answer is invalid; else [`Failure::Later`].
    pub async fn ask(
        &self,
        question: CloudQuestion,
        node: &Name,
        provider_id: &str,
    ) -> Result<Answer, Failure> {
        let (node_name, provider_id) = (node.to_string(), provider_id.to_owned());
        let mut service = self.service.clone();
        match question {
            CloudQuestion::Exists => {
                let request = self.request(pb::ExistsRequest { node_name, provider_id });
                Ok(Answer::Cloud(self.within_deadline(service.exists(request)).await?.exists))
            }
            CloudQuestion::Shutdown => {
                let request = self.request(pb::ShutdownRequest { node_name, provider_id });
                Ok(Answer::Cloud(self.within_deadline(service.shutdown(request)).await?.shut_down))
            }
            CloudQuestion::Metadata => {
                let request = self.request(pb::MetadataRequest { node_name, provider_id });
                let machine = machine(self.within_deadline(service.metadata(request)).await?);
                machine.map(|machine| Answer::Machine(Box::new(machine))).map_err(Failure::Refused)
            }
        }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.deadline);
        request
    }

    async fn within_deadline<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(self.deadline, call).await {
            Ok(answer) => answer.map(Response::into_inner).map_err(|status| failure(&status)),
            Err(_) => {
                Err(Failure::Later(format!("the cloud plug-in did not answer within {:?}", self.deadline)))
            }
        }
    }
}

fn target(endpoint: &CloudEndpoint) -> Result<Target, EndpointError> {
    let CloudEndpoint { url, tls, deadline } = endpoint;
    let unusable = |error: tonic::transport::Error| {
        let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        EndpointError::Unusable { url: url.clone(), reason }
    };
    let full = match (url.contains("://"), tls) {
        (true, _) => url.clone(),
        (false, Some(_)) => format!("https://{url}"),
        (false, None) => format!("http://{url}"),
    };
    let plain = Endpoint::from_shared(full.clone()).map_err(unusable)?;
    let target = match (plain.uri().scheme_str(), tls) {
        (Some("http"), None) => Target::from(plain),
        (Some("https"), Some(tls)) => {
            let secured = tls.target(&full, ServerRole::CloudPlugin);
            secured
                .map_err(|error| EndpointError::Unusable { url: url.clone(), reason: error.to_string() })?
        }
        (Some("http"), Some(_)) => return Err(EndpointError::InClear { url: url.clone() }),
        (Some("https"), None) => return Err(EndpointError::NoCertificate { url: url.clone() }),
        _ => {
            let reason = "must start with http:// or https://".to_owned();
            return Err(EndpointError::Unusable { url: url.clone(), reason });
        }
    };
    Ok(target.configure(|endpoint| endpoint.connect_timeout(*deadline).tcp_nodelay(true)))
}

/// What an error means. Only NOT_FOUND says something about the machine; all others are about the plug-in.
fn failure(status: &Status) -> Failure {
    let text = format!("{:?}: {}", status.code(), status.message());
    match status.code() {
        Code::NotFound => Failure::Gone,
        Code::Unimplemented
        | Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::PermissionDenied
        | Code::Unauthenticated => Failure::Refused(text),
        _ => Failure::Later(text),
    }
}

/// Checks an answer before it is written to a record: the store would refuse the whole record for one invalid label.
fn machine(answer: pb::MetadataResponse) -> Result<CloudMachine, String> {
    let pb::MetadataResponse { provider_id, instance_type, zone, region, addresses } = answer;
    for (field, value) in [("instance_type", &instance_type), ("zone", &zone), ("region", &region)] {
        check_label_value(value)
            .map_err(|error| format!("the cloud plug-in gave the {field} {value:?}, which {error}"))?;
    }
    let status = pb::NodeStatus { addresses, ..pb::NodeStatus::default() };
    let status = NodeStatus::try_from(status)
        .map_err(|invalid| format!("the cloud plug-in gave invalid addresses: {invalid}"))?;
    Ok(CloudMachine { provider_id, instance_type, zone, region, addresses: status.addresses })
}

#[cfg(test)]
mod tests;
