#include "src/run/execute/within_memory.h"

#include "paradyse/run/accountant.h"
#include "src/run/memory/device_blocks.h"

namespace paradyse {

std::optional<std::string> within_memory(
    Communicators& communicators, const std::function<void()>& body) {
  if (!communicators.recovers()) {
    body();
    return std::nullopt;
  }
  try {
    naming_lack([&] {
      // nobody is interrupted before all are in here
      communicators.world().barrier({.op = "begin", .part = ""});
      body();
    });
    return std::nullopt;
  } catch (const OutOfMemory& error) {
    communicators.interrupt(error.what());
  } catch (const Aborted&) {
    // by such a rank; or for good, which recover() says
  }
  return communicators.recover();
}

}  // namespace paradyse
