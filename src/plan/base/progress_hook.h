// How long work says how far it is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace paradyse {

// Called as work goes on, on one rank: `done` of `of` equal pieces, and what comes next.
using ProgressHook =
    std::function<void(std::int64_t done, std::int64_t of, const std::string& what)>;

}  // namespace paradyse
