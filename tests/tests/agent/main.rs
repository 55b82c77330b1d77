//! The real `muster-agent` with a real store: two processes, and the containers that the agent starts.

mod certificates;
mod container_files;
mod duplicate_node_name;
mod events;
mod heartbeat;
mod pods;
mod reaching_in;
mod registration;
mod security;
mod shutdown;
mod source_pages;
mod start;
mod static_pods;
mod status;
mod store_connection;
mod volumes;
