/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the credentials come from: the first source that is configured, in the documented order.
 *
 * Only files and the environment are looked at.  Half a configuration (a key without its secret, a
 * profile that is named and does not exist, one that needs what is not done here) is an error with
 * a sentence, because going on to the next source would end in somebody else's name.
 *
 * Runs in the thread that makes the store; reading a profile again runs in the credentials' own.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "cache/fileio.h"
#include "cache/remote/aws_config.h"
#include "cache/remote/credentials_private.h"

void credential_source_release(struct credential_source *s)
{
	free(s->profile);
	free(s->from);
	free(s->url);
	free(s->token_file);
	free(s->role_arn);
	free(s->session_name);
	free(s->command);
	memset(s, 0, sizeof(*s));
}

/* ---- environment ---- */

int credentials_read_environment(struct credential_set *out, struct why *why)
{
	const char *access = aws_env("AWS_ACCESS_KEY_ID"),
		   *secret = aws_env("AWS_SECRET_ACCESS_KEY");
	int rc;

	if (access == NULL || secret == NULL)
		return why_set(why, EINVAL, "%s is set, but not %s",
			       access != NULL ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
			       access != NULL ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
	rc = credential_set_fill(out, access, secret, aws_env("AWS_SESSION_TOKEN"), why);
	if (rc == -EINVAL)
		why_prefix(why, "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN");
	return rc;
}

/* ---- profiles ---- */

int credentials_read_profile(const struct credential_source *s, struct credential_set *out,
			     struct why *why)
{
	struct aws_config *config = NULL;
	const char *access, *secret;
	int rc = aws_config_load(s->profile, &config, why);

	if (rc < 0)
		return rc;
	access = aws_config_get(config, "aws_access_key_id");
	secret = aws_config_get(config, "aws_secret_access_key");
	if (access == NULL || secret == NULL)
		rc = why_set(why, EINVAL, "%s has no %s", s->from,
			     access == NULL ? "aws_access_key_id" : "aws_secret_access_key");
	else
		rc = credential_set_fill(out, access, secret,
					 aws_config_get(config, "aws_session_token"), why);
	if (rc == -EINVAL && access != NULL && secret != NULL)
		why_prefix(why, "%s", s->from);
	aws_config_free(config);
	return rc;
}

static int out_of_memory(struct why *why)
{
	return why_set(why, ENOMEM, "out of memory");
}

static int set_text(char **field, const char *text)
{
	*field = text != NULL ? strdup(text) : NULL;
	return *field == NULL && text != NULL ? -ENOMEM : 0;
}

static int set_web_identity(struct credential_source *s, const struct aws_config *config,
			    const char *region, const char *role, const char *file,
			    const char *session, struct why *why)
{
	const char *endpoint = aws_config_endpoint(config, "sts");
	char url[200];

	if (role == NULL)
		return why_set(why, EINVAL,
			       "a web identity needs a role: set AWS_ROLE_ARN beside "
			       "AWS_WEB_IDENTITY_TOKEN_FILE");
	if (region == NULL)
		region = aws_config_region(config);
	if (region == NULL)
		region = "us-east-1";
	if (endpoint == NULL) {
		snprintf(url, sizeof(url), "https://sts.%.60s.amazonaws.com%s", region,
			 strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
		endpoint = url;
	}
	s->kind = CREDENTIALS_WEB_IDENTITY;
	if (set_text(&s->url, endpoint) < 0 || set_text(&s->role_arn, role) < 0 ||
	    set_text(&s->token_file, file) < 0 ||
	    set_text(&s->session_name, session != NULL ? session : "weightfs") < 0)
		return out_of_memory(why);
	return 0;
}

/* 0: this profile is a source; -ENOENT without a sentence: it says nothing of credentials. */
static int find_in_profile(struct credential_source *s, const struct aws_config *config,
			   const char *region, struct why *why)
{
	const char *name = aws_config_profile(config);
	const char *role = aws_config_get(config, "role_arn");
	const char *file = aws_config_get(config, "web_identity_token_file");
	const char *command = aws_config_get(config, "credential_process");
	char shown[120];

	printable(shown, sizeof(shown), name, strlen(name));
	if (set_text(&s->profile, name) < 0 || asprintf(&s->from, "profile '%s'", shown) < 0)
		return out_of_memory(why);
	if (file != NULL)
		return set_web_identity(s, config, region, role, file,
					aws_config_get(config, "role_session_name"), why);
	if (role != NULL || aws_config_get(config, "sso_start_url") != NULL ||
	    aws_config_get(config, "sso_session") != NULL)
		return why_set(
			why, ENOTSUP,
			"profile '%s' %s, which weightfs does not do itself: make a profile "
			"with credential_process = aws configure export-credentials --format "
			"process --profile %s",
			shown, role != NULL ? "assumes a role" : "signs in by SSO", shown);
	if (aws_config_get(config, "aws_access_key_id") != NULL ||
	    aws_config_get(config, "aws_secret_access_key") != NULL) {
		s->kind = CREDENTIALS_PROFILE;
		return 0;
	}
	if (command != NULL) {
		s->kind = CREDENTIALS_PROCESS;
		return set_text(&s->command, command) < 0 ? out_of_memory(why) : 0;
	}
	return -ENOENT;
}

/* ---- container ---- */

int credentials_check_container_url(const char *url, struct why *why)
{
	static const char *const hosts[] = {
		"169.254.170.2", "169.254.170.23", "[fd00:ec2::23]", "localhost", "[::1]",
	};
	struct url u = {0};
	bool good;
	int rc = url_parse(url, &u, why);

	if (rc < 0) {
		why_prefix(why, "AWS_CONTAINER_CREDENTIALS_FULL_URI");
		return rc;
	}
	good = u.https || strncmp(u.host, "127.", 4) == 0;
	/* A name may begin like that, too. */
	if (!u.https && good && strspn(u.host, "0123456789.") != strlen(u.host))
		good = false;
	for (size_t i = 0; i < ARRAY_LEN(hosts); i++)
		good |= strcmp(u.host, hosts[i]) == 0;
	if (!good)
		rc = why_set(why, EINVAL,
			     "AWS_CONTAINER_CREDENTIALS_FULL_URI: http is allowed to this machine "
			     "and to the services of ECS and EKS only, not to %s",
			     u.host);
	url_release(&u);
	return rc;
}

static int find_container(struct credential_source *s, struct why *why)
{
	const char *relative = aws_env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *full = aws_env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
	int rc = 0;

	if (relative == NULL && full == NULL)
		return -ENOENT;
	s->kind = CREDENTIALS_CONTAINER;
	if (relative != NULL && relative[0] != '/')
		return why_set(why, EINVAL,
			       "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI does not begin with '/'");
	if (relative != NULL)
		rc = asprintf(&s->url, "http://169.254.170.2%s", relative) < 0 ? -ENOMEM : 0;
	else
		rc = set_text(&s->url, full);
	if (rc == 0)
		rc = set_text(&s->from, "the container's service");
	if (rc == 0)
		rc = set_text(&s->token_file, aws_env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"));
	if (rc < 0)
		return out_of_memory(why);
	return credentials_check_container_url(s->url, why);
}

/* ---- the order ---- */

static int find_instance(struct credential_source *s, struct why *why)
{
	const char *endpoint = aws_env("AWS_EC2_METADATA_SERVICE_ENDPOINT");
	const char *mode = aws_env("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");

	if (aws_env_true("AWS_EC2_METADATA_DISABLED"))
		return why_set(why, EACCES,
			       "there are no credentials: set AWS_ACCESS_KEY_ID and "
			       "AWS_SECRET_ACCESS_KEY, give --profile, or --no-sign-request for a "
			       "public bucket");
	if (endpoint == NULL)
		endpoint = mode != NULL && strcasecmp(mode, "IPv6") == 0 ? "http://[fd00:ec2::254]"
									 : "http://169.254.169.254";
	s->kind = CREDENTIALS_INSTANCE;
	if (set_text(&s->url, endpoint) < 0 ||
	    set_text(&s->from, "the instance's metadata service") < 0)
		return out_of_memory(why);
	return 0;
}

static int find_environment(struct credential_source *s, struct why *why)
{
	if (aws_env("AWS_ACCESS_KEY_ID") == NULL && aws_env("AWS_SECRET_ACCESS_KEY") == NULL)
		return -ENOENT;
	s->kind = CREDENTIALS_ENVIRONMENT;
	return set_text(&s->from, "the environment") < 0 ? out_of_memory(why) : 0;
}

static int find_web_identity(struct credential_source *s, const struct aws_config *config,
			     const char *region, struct why *why)
{
	const char *file = aws_env("AWS_WEB_IDENTITY_TOKEN_FILE");

	if (file == NULL)
		return -ENOENT;
	if (set_text(&s->from, "the web identity") < 0)
		return out_of_memory(why);
	return set_web_identity(s, config, region, aws_env("AWS_ROLE_ARN"), file,
				aws_env("AWS_ROLE_SESSION_NAME"), why);
}

/* A profile that somebody named must be there, and be good for something. */
static int check_named(const struct credentials_options *o, const struct aws_config *config, int rc,
		       struct why *why)
{
	const char *name = aws_config_profile(config);
	bool named = o->profile != NULL || aws_env("AWS_PROFILE") != NULL;
	char shown[120];

	if (rc != -ENOENT || !named)
		return rc;
	printable(shown, sizeof(shown), name, strlen(name));
	if (!aws_config_has_profile(config))
		return why_set(why, EINVAL,
			       "there is no profile '%s' in ~/.aws/credentials or ~/.aws/config "
			       "(or where AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE point)",
			       shown);
	if (o->profile != NULL)
		return why_set(why, EINVAL,
			       "profile '%s' has neither keys nor a credential_process", shown);
	return rc;
}

static int find_in_order(const struct credentials_options *o, const struct aws_config *config,
			 struct credential_source *s, struct why *why)
{
	int rc = -ENOENT;

	if (o->profile == NULL) {
		rc = find_environment(s, why);
		if (rc == -ENOENT)
			rc = find_web_identity(s, config, o->region, why);
	}
	if (rc == -ENOENT) {
		rc = find_in_profile(s, config, o->region, why);
		rc = check_named(o, config, rc, why);
		if (rc == -ENOENT)
			credential_source_release(s);
	}
	if (rc == -ENOENT)
		rc = find_container(s, why);
	if (rc == -ENOENT)
		rc = find_instance(s, why);
	return rc;
}

int credentials_find(const struct credentials_options *o, struct credential_source *s,
		     struct why *why)
{
	struct aws_config *config = NULL;
	int rc;

	if (o->anonymous) {
		s->kind = CREDENTIALS_ANONYMOUS;
		return set_text(&s->from, "nobody (anonymous)") < 0 ? out_of_memory(why) : 0;
	}
	rc = aws_config_load(o->profile, &config, why);
	if (rc < 0)
		return rc;
	rc = find_in_order(o, config, s, why);
	aws_config_free(config);
	return rc;
}
