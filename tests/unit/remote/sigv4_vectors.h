/* SPDX-License-Identifier: Apache-2.0 */
/* What botocore signs for awkward requests, by tests/interop/test_sigv4.py. */
/* clang-format off */
#define VECTOR_ACCESS "AKIDEXAMPLE"
#define VECTOR_SECRET "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
#define VECTOR_TOKEN "FQoGZXIvYXdzEBYaD/token+with/odd=chars=="
#define VECTOR_TIME INT64_C(1440938160)
static const struct vector vectors[] = {
	{
		.method = METHOD_GET,
		.url = "https://bucket.s3.amazonaws.com/",
		.region = "us-east-1",
		.token = false,
		.payload = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		.names =
			"host;x-amz-content-sha256;x-amz-date",
		.signature = "a37dd5a0f01c6a26067de3404da05dbb1119001336be7aa8e67dd183aac78a6a",
	},
	{
		.method = METHOD_GET,
		.url = "https://s3.eu-west-3.amazonaws.com/bucket/a/b.safetensors",
		.region = "eu-west-3",
		.token = true,
		.payload = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		.headers = {
			{"If-Match", "\"9b2cf535f27731c974343645a3985328-5\""},
		},
		.names =
			"host;if-match;x-amz-content-sha256;x-amz-date;x-amz-security"
			"-token",
		.signature = "df39b4c9a8dfe55058cf6893aeb7ddb81cc8ca426518875abb9a278b8d16dd65",
	},
	{
		.method = METHOD_HEAD,
		.url = "http://127.0.0.1:9000/bucket/with%20blank%2Band%25.bin",
		.region = "us-east-1",
		.token = false,
		.payload = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		.names =
			"host;x-amz-content-sha256;x-amz-date",
		.signature = "f6fbb9a4c883c0ba4500ace76f566db8f589b1ceffe1caa6e32496dccdae66b6",
	},
	{
		.method = METHOD_GET,
		.url = "https://s3.hf.co/namespace/bucket/run/model.safetensors",
		.region = "us-east-1",
		.token = false,
		.payload = "UNSIGNED-PAYLOAD",
		.names =
			"host;x-amz-content-sha256;x-amz-date",
		.signature = "4539670d58bf37894d520f3898d1dac7074bd9197a1d621e3ff9ac631c681616",
	},
	{
		.method = METHOD_GET,
		.url = "https://h/b/%E2%82%AC%C3%A4/a//b/../c/./d~e-f_g.h",
		.region = "us-east-1",
		.token = false,
		.payload = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		.names =
			"host;x-amz-content-sha256;x-amz-date",
		.signature = "e7b4958a72fd74571f3a64bf8811ad20882b2c0ca3810a8e653564c3150376c0",
	},
	{
		.method = METHOD_GET,
		.url = "https://h/b/%3D%3A%40%2A%27%21%24%26%3B%2C%28%29%23%3F",
		.region = "us-east-1",
		.token = false,
		.payload = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		.names =
			"host;x-amz-content-sha256;x-amz-date",
		.signature = "0b158997c8cda7f6a45955f91baff89892569094dced2ddb745c03da6b85843a",
	},
	{
		.method = METHOD_GET,
		.url = "https://h/b?list-type=2&prefix=run%2Fdeltas%2F&delimiter=%2F"
			"&max-keys=1000&encoding-type=url",
		.region = "us-west-2",
		.token = true,
		.payload = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		.names =
			"host;x-amz-content-sha256;x-amz-date;x-amz-security-token",
		.signature = "db1080aa3746d27ef382b11560d31406ea370f408798304569d5a0d06dc0ce08",
	},
	{
		.method = METHOD_GET,
		.url = "https://h/b?list-type=2&continuation-token=1%2Bab%2F%3D%3D&s"
			"tart-after=a%20b%2B~",
		.region = "us-east-1",
		.token = false,
		.payload = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		.names =
			"host;x-amz-content-sha256;x-amz-date",
		.signature = "e786e4799764e6cd94b48b030aee9d1542e2c61f52e4684ba6e8792219320267",
	},
	{
		.method = METHOD_GET,
		.url = "https://h/b?location=",
		.region = "us-east-1",
		.token = false,
		.payload = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		.names =
			"host;x-amz-content-sha256;x-amz-date",
		.signature = "36df4ba1b26f30607202f6842716e6ae7d2f9b3911dbf19d045b1ac7d7fac238",
	},
	{
		.method = METHOD_GET,
		.url = "https://h/b?b=2&a=2&a=1&A=3&a-b=4&a%25=5",
		.region = "us-east-1",
		.token = false,
		.payload = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		.names =
			"host;x-amz-content-sha256;x-amz-date",
		.signature = "eb862fb5d9bb91a49981eddc70a252a0223db34b977c010935c05aa83c12c135",
	},
	{
		.method = METHOD_PUT,
		.url = "https://h/b/key",
		.region = "us-east-1",
		.token = true,
		.payload = "771824de42287642fa0fbe0b568b80cc3290e29b7d3cd6efbc7b1b8eb1037b04",
		.headers = {
			{"Content-Type", "application/octet-stream"},
			{"x-amz-meta-a", "  two   blanks  "},
		},
		.names =
			"content-type;host;x-amz-content-sha256;x-amz-date;x-amz-meta"
			"-a;x-amz-security-token",
		.signature = "68f0c5aecfc0b28905e86784f646ae98f187378abc27318502640b36fb0d2553",
	},
	{
		.method = METHOD_PUT,
		.url = "https://h:8443/b/key?partNumber=3&uploadId=x.y_z-~",
		.region = "us-east-1",
		.token = false,
		.payload = "UNSIGNED-PAYLOAD",
		.headers = {
			{"If-None-Match", "*"},
		},
		.names =
			"host;if-none-match;x-amz-content-sha256;x-amz-date",
		.signature = "10db086a07c0c1babadbaa4dd1b03c18c761c44f7df66e33cf874fb9f4e290e9",
	},
	{
		.method = METHOD_POST,
		.url = "https://h/b/key?uploads=",
		.region = "ap-northeast-1",
		.token = false,
		.payload = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		.headers = {
			{"x-amz-request-payer", "requester"},
		},
		.names =
			"host;x-amz-content-sha256;x-amz-date;x-amz-request-payer",
		.signature = "df5a095d2187f7a915d1c1cca39ec06ce647f5e32738cd996d76f7a3a481656c",
	},
	{
		.method = METHOD_DELETE,
		.url = "https://h/b/key?versionId=null",
		.region = "us-east-1",
		.token = false,
		.payload = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		.names =
			"host;x-amz-content-sha256;x-amz-date",
		.signature = "b62dbe7dbf0ce8547869a13ff836bb17af28a93ecf9894df550bcef452e95585",
	},
};
/* clang-format on */
