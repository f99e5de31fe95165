// How a C function is called with the arguments of a vector file.
//
// The types of the C function are taken from the compiler, those of the arguments from the file,
// and a call is refused where they differ: neither can drift from the other unnoticed.
#ifndef FLASHMESH_BENCH_VECTORS_HPP
#define FLASHMESH_BENCH_VECTORS_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace bench {

// An argument of a call, as a vector file has it.
struct argument {
    std::string name;
    std::string type;
    bool is_scalar = false;
    bool is_written = false;
    // A scalar's value; of other arguments the array, which is aligned as flashmesh aligns it and
    // ends where its last element ends.
    uint64_t scalar = 0;
    void *array = nullptr;
};

template <typename T>
constexpr const char *type_name()
{
    if constexpr (std::is_same_v<T, float>) {
        return "f32";
    } else if constexpr (std::is_same_v<T, double>) {
        return "f64";
    } else {
        static_assert(std::is_integral_v<T>, "no type of a C argument");
        constexpr const char *names[] = {"i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"};
        constexpr std::size_t size_place = sizeof(T) == 1   ? 0
                                           : sizeof(T) == 2 ? 1
                                           : sizeof(T) == 4 ? 2
                                                            : 3;
        return names[2 * size_place + (std::is_unsigned_v<T> ? 1 : 0)];
    }
}

inline void require(bool holds, const argument &value, const char *what)
{
    if (!holds) {
        throw std::runtime_error("argument '" + value.name + "' (" + value.type + ") " + what);
    }
}

// The C argument of type `T` that `value` stands for.
template <typename T>
T to_c(const argument &value)
{
    if constexpr (std::is_pointer_v<T>) {
        using element = std::remove_pointer_t<T>;
        require(!value.is_scalar, value, "is an array in the C function");
        require(value.type == type_name<std::remove_const_t<element>>(), value,
                "has another type in the C function");
        require(!value.is_written || !std::is_const_v<element>, value,
                "is const in the C function");
        return static_cast<T>(value.array);
    } else {
        require(value.is_scalar, value, "is a scalar in the C function");
        require(value.type == type_name<T>(), value, "has another type in the C function");
        T scalar;
        std::memcpy(&scalar, &value.scalar, sizeof(T));
        return scalar;
    }
}

using caller = void (*)(const std::vector<argument> &);

template <auto Function>
struct adapter;

template <typename... C, void (*Function)(C...)>
struct adapter<Function> {
    static void call(const std::vector<argument> &arguments)
    {
        if (arguments.size() != sizeof...(C)) {
            throw std::runtime_error("the C function takes " + std::to_string(sizeof...(C)) +
                                     " arguments, not " + std::to_string(arguments.size()));
        }
        call(arguments, std::index_sequence_for<C...>{});
    }

    template <std::size_t... Places>
    static void call(const std::vector<argument> &arguments, std::index_sequence<Places...>)
    {
        Function(to_c<C>(arguments[Places])...);
    }
};

struct function {
    const char *name;
    caller call;
};

// The functions of the kernel under test; bench/kernel.cpp defines them.
extern const std::vector<function> functions;

} // namespace bench

#endif
