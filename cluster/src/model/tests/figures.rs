//! What is committed is what the model gives.
