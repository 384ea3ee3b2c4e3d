#include "src/cli/version.h"

namespace paradyse::cli {

const char* version() { return PARADYSE_VERSION; }

const char* commit() { return PARADYSE_COMMIT; }

}  // namespace paradyse::cli
