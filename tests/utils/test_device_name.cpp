#include <faiss_flashgmm/utils/device_name.h>

#include <string>
#include <vector>

#include <gtest/gtest.h>

using faiss_flashgmm::cuda_devices_of;
using faiss_flashgmm::Error;

TEST(device_name, NamesDevices) {
    EXPECT_TRUE(cuda_devices_of("cpu").empty());
    EXPECT_EQ(cuda_devices_of("cuda"), std::vector<int>{0});
    EXPECT_EQ(cuda_devices_of("cuda:3"), std::vector<int>{3});
    EXPECT_EQ(cuda_devices_of("cuda:0,1,10"), (std::vector<int>{0, 1, 10}));
}

TEST(device_name, RefusesWhatIsNoDevice) {
    for (const std::string name :
         {"",
          "tpu",
          "CUDA",
          "cuda0",
          "cuda:",
          "cuda:x",
          "cuda:1,",
          "cuda:,1",
          "cuda:-1",
          "cuda:1x",
          "cuda:99999999999"}) {
        EXPECT_THROW(cuda_devices_of(name), Error) << name;
    }
}
