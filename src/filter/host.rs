//! Every call to the host, wrapped once: bytes in, bytes out, and any status the host may answer
//! becomes `None` or an error.
//!
//! The SDK's own wrappers panic on statuses they do not expect and on values that are not UTF-8;
//! one panic would end every stream of an Envoy worker. The functions are those of the proxy-wasm
//! ABI 0.2.1.
#![allow(unsafe_code)]

use std::ptr::null_mut;

use crate::metrics::{Meter, MetricKind};
use crate::state::{Store, StoreError, Version};
use crate::steer::{filter_state_argument, header_map};

const OK: u32 = 0;
const CAS_MISMATCH: u32 = 8;

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_get_current_time_nanoseconds(time: *mut u64) -> u32;
    fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
    fn proxy_get_buffer_bytes(
        kind: u32,
        start: usize,
        length: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_get_header_map_value(
        map: u32,
        key: *const u8,
        key_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_replace_header_map_value(
        map: u32,
        key: *const u8,
        key_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    fn proxy_remove_header_map_value(map: u32, key: *const u8, key_size: usize) -> u32;
    fn proxy_get_property(
        path: *const u8,
        path_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_set_property(
        path: *const u8,
        path_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    fn proxy_get_shared_data(
        key: *const u8,
        key_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
        version: *mut u32,
    ) -> u32;
    fn proxy_set_shared_data(
        key: *const u8,
        key_size: usize,
        value: *const u8,
        value_size: usize,
        version: u32,
    ) -> u32;
    fn proxy_define_metric(kind: u32, name: *const u8, name_size: usize, id: *mut u32) -> u32;
    fn proxy_increment_metric(id: u32, offset: i64) -> u32;
    fn proxy_record_metric(id: u32, value: u64) -> u32;
    fn proxy_send_local_response(
        status: u32,
        details: *const u8,
        details_size: usize,
        body: *const u8,
        body_size: usize,
        headers: *const u8,
        headers_size: usize,
        grpc_status: i32,
    ) -> u32;
    fn proxy_continue_stream(stream: u32) -> u32;
    fn proxy_set_effective_context(context: u32) -> u32;
    fn proxy_call_foreign_function(
        name: *const u8,
        name_size: usize,
        argument: *const u8,
        argument_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
}

/// Which buffer to read.
#[derive(Clone, Copy)]
pub(super) enum Buffer {
    RequestBody = 0,
    ResponseBody = 1,
    CalloutBody = 4,
    PluginConfiguration = 7,
}

/// Which headers to read or write.
#[derive(Clone, Copy)]
pub(super) enum Headers {
    Request = 0,
    Response = 2,
    Callout = 6,
}

/// Calls a host function that hands out memory, and takes the memory over.
fn received(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Option<Vec<u8>> {
    let mut data: *mut u8 = null_mut();
    let mut size = 0_usize;
    if call(&raw mut data, &raw mut size) != OK {
        return None;
    }
    if data.is_null() {
        return Some(Vec::new());
    }
    // SAFETY: the host got this memory from the SDK's `proxy_on_memory_allocate`, which leaks a
    // boxed slice of exactly `size` bytes for the callee to own, and filled all of it.
    Some(unsafe { Vec::from_raw_parts(data, size, size) })
}

/// Wall clock in nanoseconds.
pub(super) fn now_ns() -> u64 {
    let mut time = 0;
    // SAFETY: the host writes one u64.
    unsafe { proxy_get_current_time_nanoseconds(&raw mut time) };
    time
}

/// Asks for `on_tick` every so often.
pub(super) fn set_tick_period_ms(period_ms: u32) {
    // SAFETY: plain value.
    unsafe { proxy_set_tick_period_milliseconds(period_ms) };
}

/// Part of a buffer; `None` if there is none now.
pub(super) fn buffer(kind: Buffer, start: usize, length: usize) -> Option<Vec<u8>> {
    // SAFETY: the out pointers are valid for the call.
    received(|data, size| unsafe { proxy_get_buffer_bytes(kind as u32, start, length, data, size) })
}

/// First value of a header. An absent and an empty one look alike to the host.
pub(super) fn header(map: Headers, name: &str) -> Option<Vec<u8>> {
    // SAFETY: `name` outlives the call; the out pointers are valid for it.
    let value = received(|data, size| unsafe {
        proxy_get_header_map_value(map as u32, name.as_ptr(), name.len(), data, size)
    });
    value.filter(|value| !value.is_empty())
}

/// Makes `value` the only value of a header. Says whether the host did.
pub(super) fn set_header(map: Headers, name: &str, value: &[u8]) -> bool {
    // SAFETY: both slices outlive the call.
    let status = unsafe {
        proxy_replace_header_map_value(
            map as u32,
            name.as_ptr(),
            name.len(),
            value.as_ptr(),
            value.len(),
        )
    };
    status == OK
}

/// Removes every value of a header.
pub(super) fn remove_header(map: Headers, name: &str) {
    // SAFETY: `name` outlives the call.
    unsafe { proxy_remove_header_map_value(map as u32, name.as_ptr(), name.len()) };
}

/// A property of the stream; `path` is joined by NUL bytes, as the ABI wants it.
pub(super) fn property(path: &str) -> Option<Vec<u8>> {
    // SAFETY: `path` outlives the call; the out pointers are valid for it.
    received(|data, size| unsafe { proxy_get_property(path.as_ptr(), path.len(), data, size) })
}

/// Sets a property, which Envoy keeps as filter state `wasm.PATH`.
pub(super) fn set_property(path: &str, value: &[u8]) {
    // SAFETY: both slices outlive the call.
    unsafe { proxy_set_property(path.as_ptr(), path.len(), value.as_ptr(), value.len()) };
}

/// Envoy's metrics.
pub(super) struct HostMeter;

impl Meter for HostMeter {
    fn define(&self, kind: MetricKind, name: &str) -> Option<u32> {
        let kind = match kind {
            MetricKind::Counter => 0,
            MetricKind::Gauge => 1,
            MetricKind::Histogram => 2,
        };
        let mut id = 0;
        // SAFETY: `name` outlives the call; the host writes one u32.
        let status = unsafe { proxy_define_metric(kind, name.as_ptr(), name.len(), &raw mut id) };
        (status == OK).then_some(id)
    }

    fn increment(&self, id: u32, by: u64) {
        // SAFETY: plain values.
        unsafe { proxy_increment_metric(id, i64::try_from(by).unwrap_or(i64::MAX)) };
    }

    fn record(&self, id: u32, value: u64) {
        // SAFETY: plain values.
        unsafe { proxy_record_metric(id, value) };
    }
}

/// Answers the request. `details` is what access logs show as `%RESPONSE_CODE_DETAILS%`.
pub(super) fn reply(status: u16, details: &str, headers: &[(&str, &str)], body: &str) {
    const NO_GRPC_STATUS: i32 = -1;
    let headers = header_map(headers);
    // SAFETY: all slices outlive the call.
    unsafe {
        proxy_send_local_response(
            u32::from(status),
            details.as_ptr(),
            details.len(),
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            NO_GRPC_STATUS,
        )
    };
}

/// Lets a held request go.
pub(super) fn resume_request() -> bool {
    // SAFETY: plain value.
    unsafe { proxy_continue_stream(0) == OK }
}

/// Makes further calls concern another stream. Says whether the host knows it.
pub(super) fn set_effective_context(context: u32) -> bool {
    // SAFETY: plain value.
    unsafe { proxy_set_effective_context(context) == OK }
}

/// Sets a filter state object by the name of its factory, for this request.
pub(super) fn set_filter_state(path: &str, value: &str) -> bool {
    const FUNCTION: &str = "set_envoy_filter_state";
    let Some(argument) = filter_state_argument(path, value) else {
        return false;
    };
    // SAFETY: all slices outlive the call; the out pointers are valid for it.
    let answer = received(|data, size| unsafe {
        let argument = argument.as_slice();
        proxy_call_foreign_function(
            FUNCTION.as_ptr(),
            FUNCTION.len(),
            argument.as_ptr(),
            argument.len(),
            data,
            size,
        )
    });
    answer.is_some()
}

/// Envoy's shared data.
pub(super) struct SharedData;

impl SharedData {
    /// A version of 0 means "whatever stands there".
    fn set(key: &str, value: &[u8], version: u32) -> Result<(), StoreError> {
        // SAFETY: both slices outlive the call.
        match unsafe {
            proxy_set_shared_data(
                key.as_ptr(),
                key.len(),
                value.as_ptr(),
                value.len(),
                version,
            )
        } {
            OK => Ok(()),
            CAS_MISMATCH => Err(StoreError::Conflict),
            _ => Err(StoreError::Unavailable),
        }
    }
}

impl Store for SharedData {
    fn get(&self, key: &str) -> Option<(Vec<u8>, Version)> {
        let mut version = 0;
        // SAFETY: `key` outlives the call; the out pointers are valid for it.
        let value = received(|data, size| unsafe {
            proxy_get_shared_data(key.as_ptr(), key.len(), data, size, &raw mut version)
        })?;
        Some((value, Version(version)))
    }

    fn replace(&self, key: &str, value: &[u8], expected: Version) -> Result<(), StoreError> {
        Self::set(key, value, expected.0)
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        Self::set(key, value, 0)
    }
}
