//! Requests per minute.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

use crate::error::ApiError;
use crate::worker::lock;

/// Clients that are remembered before the ones with nothing to remember are dropped.
const MANY: usize = 4096;

/// A bucket for every client, full at first, refilled over a minute.
#[derive(Debug)]
pub(crate) struct RateLimit {
    per_minute: f64,
    buckets: Mutex<HashMap<String, (f64, Instant)>>,
}

impl RateLimit {
    pub fn new(per_minute: u32) -> RateLimit {
        RateLimit { per_minute: f64::from(per_minute), buckets: Mutex::default() }
    }

    /// Takes one request of a client.
    ///
    /// # Errors
    /// 429 with the seconds until the next one.
    pub fn take(&self, client: &str, now: Instant) -> Result<(), ApiError> {
        let per_second = self.per_minute / 60.0;
        let filled = |(left, then): (f64, Instant)| {
            let since = now.saturating_duration_since(then).as_secs_f64();
            (left + since * per_second).min(self.per_minute)
        };
        let mut buckets = lock(&self.buckets);
        if buckets.len() >= MANY {
            buckets.retain(|_, bucket| filled(*bucket) < self.per_minute);
        }
        let bucket = buckets.entry(client.to_owned()).or_insert((self.per_minute, now));
        let left = filled(*bucket);
        if left < 1.0 {
            return Err(ApiError::rate_limited(((1.0 - left) / per_second).ceil() as u64));
        }
        *bucket = (left - 1.0, now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_minute_has_so_many_requests_for_every_client() {
        let limit = RateLimit::new(2);
        let start = Instant::now();
        assert!(limit.take("a", start).is_ok() && limit.take("a", start).is_ok());
        assert_eq!(limit.take("a", start).unwrap_err().retry_after, Some(30));
        assert!(limit.take("b", start).is_ok());
        assert!(limit.take("a", start + Duration::from_secs(29)).is_err());
        assert!(limit.take("a", start + Duration::from_secs(31)).is_ok());
    }
}
