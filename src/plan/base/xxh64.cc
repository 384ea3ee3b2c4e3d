#include "src/plan/base/xxh64.h"

#define XXH_INLINE_ALL

#include <fmt/format.h>
#include <xxhash.h>

namespace paradyse {

struct Xxh64::State {
  XXH64_state_t state;
};

Xxh64::Xxh64() : state_(std::make_unique<State>()) { XXH64_reset(&state_->state, 0); }
Xxh64::~Xxh64() = default;

void Xxh64::add(std::string_view bytes) {
  XXH64_update(&state_->state, bytes.data(), bytes.size());
}

std::uint64_t Xxh64::value() const { return XXH64_digest(&state_->state); }

std::string Xxh64::hex() const { return fmt::format("{:016x}", value()); }

}  // namespace paradyse
