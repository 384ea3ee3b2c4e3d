// The processors of this machine.
#pragma once

namespace paradyse {

// That this process may use.
int usable_cores();

}  // namespace paradyse
