//! The tools that operators use, with the files of `deploy/`: grpcurl, ghz, Prometheus and Jaeger.

mod ghz;
mod grpcurl;
mod grpcurl_examples;
mod jaeger;
mod metrics;
mod prometheus;
