//! Stand-in for Redis in a program without the feature `redis`: no store can be opened.

use crate::link::{Failure, Store};
use crate::request::Request;
use std::sync::Arc;
use tailwater_api::RedisSpec;
use tailwater_chain::chain::DurableFunction;

/// Error of a program without Redis.
#[derive(Debug, thiserror::Error)]
#[error("spec.state: this program was built without the feature `redis`; `make build` builds one with it")]
pub struct AccessError;

/// Redis user of a function.
#[derive(Clone, Debug)]
pub struct FunctionAccess {
    /// Name of the user.
    pub user: String,
}

/// Credentials of a run: no value of this type exists.
#[derive(Clone, Copy, Debug)]
pub enum Access {}

impl Access {
    /// Returns the error that the feature is missing.
    ///
    /// # Errors
    /// Always.
    pub fn open(_: &RedisSpec, _: &str, _: Option<&str>, _: &[DurableFunction]) -> Result<Access, AccessError> {
        Err(AccessError)
    }

    /// Functions in the order of their pieces.
    pub fn functions(&self) -> &[FunctionAccess] {
        match *self {}
    }

    /// Address of Redis.
    pub fn address(&self) -> &str {
        match *self {}
    }

    /// Warning about the settings of Redis.
    pub fn warning(&self) -> Option<String> {
        match *self {}
    }

    /// Removes the functions' users.
    ///
    /// # Errors
    /// Never.
    pub fn remove_users(&self) -> Result<(), AccessError> {
        match *self {}
    }
}

/// Connections of one thread: no value of this type exists.
#[derive(Clone, Copy, Debug)]
pub enum RedisStore {}

impl RedisStore {
    /// Never called: there is no [`Access`].
    pub fn new(access: Arc<Access>) -> RedisStore {
        match *access {}
    }
}

impl Store for RedisStore {
    fn serve(&mut self, _: &mut [Request]) -> Result<u32, Failure> {
        match *self {}
    }
}
