// What NVIDIA's data sheets say of GPUs, to hold measured speeds beside.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace paradyse {

struct DataSheet {
  std::string name;         // of the sheet
  double narrow_flops = 0;  // bfloat16 and float16 a second, dense, summed in float32
  double memory_bytes_per_second = 0;
};

// Of a card as its driver calls it ("NVIDIA H100 80GB HBM3"); none where the card is not known, or
// is a slice of one (MIG).
std::optional<DataSheet> data_sheet_of(std::string_view card);

}  // namespace paradyse
