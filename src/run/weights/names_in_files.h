// What files may call a weight, other than the model does.
#pragma once

#include <string>
#include <vector>

#include "paradyse/plan/model.h"

namespace paradyse {

// Its name, then its other ones: older ones name the LayerNorms' vectors otherwise, and files of
// the model without a head leave the first part of a name out ("transformer.wte.weight" is
// "wte.weight").
std::vector<std::string> names_in_files(const std::string& name, const OtherNames& other);

}  // namespace paradyse
