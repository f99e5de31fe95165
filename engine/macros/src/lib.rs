//! Attributes of flashmesh's own code.

mod async_impl;

use proc_macro::TokenStream;
use syn::{ItemImpl, parse_macro_input};

/// An implementation of a trait that was declared with `#[async_trait]`, as that attribute makes it, but
/// compiled in a fraction of the time.
///
/// A method of such a trait has bounds between its lifetimes. With those among what is known, rustc 1.95
/// looks at every part of DataFusion's plans and expressions, which hold one another, again and again to
/// find that a future which holds one is `Send`: five to twenty seconds for each method, in each of three
/// passes. Here the future is made by a method of the type itself that has a single lifetime and no
/// bounds, where the compiler takes 0.1 seconds; what the trait asks for calls that.
///
/// Methods take `self` by reference and have no type parameters. What is not `async` stays as it is.
#[proc_macro_attribute]
pub fn async_impl(_: TokenStream, item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as ItemImpl);
    async_impl::expand(item)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
