// Inputs that cannot be read are the caller's mistake, not the program's failure.
#pragma once

#include <stdexcept>
#include <string>

#include "paradyse/run/accountant.h"
#include "src/plan/base/disk_file.h"

namespace paradyse {

// Calls `body`, which reads inputs: a std::runtime_error (file is not there, is cut off) becomes a
// std::invalid_argument, after "context: " where one is given; running out of memory stays what it
// is.
template <typename Body>
auto reading(const Body& body, const std::string& context = {}) -> decltype(body()) {
  try {
    return body();
  } catch (const OutOfMemory&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument((context.empty() ? "" : context + ": ") + message_of(error));
  }
}

}  // namespace paradyse
