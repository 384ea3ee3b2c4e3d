#include "paradyse/communicator.h"

namespace paradyse {

std::string to_string(const Call& call) {
  std::string text = call.layer >= 0 ? "layer " + std::to_string(call.layer) + " " : "";
  if (!call.part.empty()) {
    text += std::string(call.part) + " ";
  }
  return text + std::string(call.op);
}

}  // namespace paradyse
