//! What `#[async_impl]` makes of an implementation.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Error, FnArg, Ident, ImplItem, ImplItemFn, ItemImpl, Lifetime, Path, ReceiverKind, Result,
    ReturnType, Signature, Type, TypePath, TypeReference, parse_quote,
};

/// The implementation, and one of the type itself with the methods that make futures.
pub fn expand(mut item: ItemImpl) -> Result<TokenStream> {
    let Some((of, _)) = item.trait_.clone() else {
        return Err(Error::new_spanned(&item.self_ty, "this is of no trait"));
    };
    let types = item.items.iter().filter_map(|item| match item {
        ImplItem::Type(made) => Some(made.ident.clone()),
        _ => None,
    });
    let mut types = OfTrait {
        of,
        names: types.collect(),
    };
    let mut futures = Vec::new();
    for method in &mut item.items {
        if let ImplItem::Fn(method) = method
            && method.sig.asyncness.is_some()
        {
            let mut future = made_of_its_own(method)?;
            types.visit_impl_item_fn_mut(&mut future);
            futures.push(future);
        }
    }
    let (generics, _, bounds) = item.generics.split_for_impl();
    let own = &item.self_ty;
    Ok(quote! {
        #item

        impl #generics #own #bounds {
            #(#futures)*
        }
    })
}

/// Makes a method what the trait asks for, and returns the one that it calls.
fn made_of_its_own(method: &mut ImplItemFn) -> Result<ImplItemFn> {
    let mut future = method.clone();
    let Signature {
        generics, inputs, ..
    } = &method.sig;
    if !generics.params.is_empty() {
        let message = "a method with parameters of its own is for #[async_trait]";
        return Err(Error::new_spanned(generics, message));
    }
    if !matches!(inputs.first(), Some(FnArg::Receiver(receiver)) if matches!(receiver.kind, ReceiverKind::Reference(..)))
    {
        let message = "a method that takes no &self is for #[async_trait]";
        return Err(Error::new_spanned(&method.sig, message));
    }
    let name = format_ident!("__{}", method.sig.ident);
    let answer: Type = match &method.sig.output {
        ReturnType::Default => parse_quote!(()),
        ReturnType::Type(_, answer) => answer.as_ref().clone(),
    };

    future.attrs.retain(|attr| !attr.path().is_ident("doc"));
    let mut one = Lifetimes::one();
    one.visit_signature_mut(&mut future.sig);
    let signature = &mut future.sig;
    signature.asyncness = None;
    signature.ident = name.clone();
    signature.generics = parse_quote!(<'a>);
    signature.output = boxed(&answer, parse_quote!('a));
    let block = &future.block;
    // An async block can't say what it gives; the compiler takes it from the first thing that is returned.
    future.block = parse_quote!({
        ::std::boxed::Box::pin(async move {
            if let ::std::option::Option::Some(answer) = ::std::option::Option::None::<#answer> {
                return answer;
            }
            let answer: #answer = #block;
            #[allow(unreachable_code)]
            answer
        })
    });

    let mut each = Lifetimes::each();
    each.visit_signature_mut(&mut method.sig);
    let lifetimes = &each.made;
    let signature = &mut method.sig;
    signature.asyncness = None;
    signature.generics = parse_quote!(<#(#lifetimes,)* 'async_trait>);
    signature.generics.where_clause = Some(parse_quote! {
        where #(#lifetimes: 'async_trait,)* Self: 'async_trait
    });
    signature.output = boxed(&answer, parse_quote!('async_trait));
    let mut arguments = Vec::new();
    for (at, input) in signature.inputs.iter_mut().enumerate() {
        if let FnArg::Typed(input) = input {
            let name = format_ident!("argument_{at}");
            *input.pat = parse_quote!(#name);
            arguments.push(name);
        }
    }
    method.block = parse_quote!({ self.#name(#(#arguments),*) });
    Ok(future)
}

/// What a method that makes a future gives.
fn boxed(answer: &Type, lifetime: Lifetime) -> ReturnType {
    parse_quote! {
        -> ::std::pin::Pin<::std::boxed::Box<
            dyn ::std::future::Future<Output = #answer> + ::std::marker::Send + #lifetime
        >>
    }
}

/// Gives references of a method's arguments lifetimes that have names.
struct Lifetimes {
    is_one: bool,
    made: Vec<Lifetime>,
}

impl Lifetimes {
    /// One and the same.
    fn one() -> Self {
        Self {
            is_one: true,
            made: Vec::new(),
        }
    }

    /// One for each reference, in the order in which `#[async_trait]` numbers them.
    fn each() -> Self {
        Self {
            is_one: false,
            made: Vec::new(),
        }
    }

    fn next(&mut self) -> Lifetime {
        let name = match self.is_one {
            true => "'a".to_owned(),
            false => format!("'life{}", self.made.len()),
        };
        let lifetime = Lifetime::new(&name, Span::call_site());
        self.made.push(lifetime.clone());
        lifetime
    }
}

impl VisitMut for Lifetimes {
    fn visit_signature_mut(&mut self, signature: &mut Signature) {
        for input in &mut signature.inputs {
            self.visit_fn_arg_mut(input);
        }
    }

    fn visit_receiver_kind_mut(&mut self, kind: &mut ReceiverKind) {
        match kind {
            ReceiverKind::Reference(_, lifetime, _) => *lifetime = Some(self.next()),
            other => visit_mut::visit_receiver_kind_mut(self, other),
        }
    }

    fn visit_type_reference_mut(&mut self, reference: &mut TypeReference) {
        if reference.lifetime.is_none() {
            reference.lifetime = Some(self.next());
            self.visit_type_mut(&mut reference.elem);
            return;
        }
        visit_mut::visit_type_reference_mut(self, reference);
    }

    fn visit_lifetime_mut(&mut self, lifetime: &mut Lifetime) {
        if lifetime.ident == "_" {
            *lifetime = self.next();
        }
    }
}

/// Says of the trait's types whose they are: `Self::Answer` is known in its implementation alone.
struct OfTrait {
    of: Path,
    names: Vec<Ident>,
}

impl VisitMut for OfTrait {
    fn visit_type_path_mut(&mut self, path: &mut TypePath) {
        visit_mut::visit_type_path_mut(self, path);
        let segments = &path.path.segments;
        if path.qself.is_some() || segments.len() != 2 || segments[0].ident != "Self" {
            return;
        }
        let name = &segments[1].ident;
        if self.names.contains(name) {
            let of = &self.of;
            *path = parse_quote!(<Self as #of>::#name);
        }
    }
}
