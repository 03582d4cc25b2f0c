package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"
)

const bodyMax = 1 << 22

// A failure that a test has requested, for the next `count` requests whose path starts with `path`.
type failure struct {
	path   string
	count  int
	hang   bool
	status int
	header http.Header
	body   []byte
}

// The controls for tests, all of them below /test/:
//
//	POST   /test/fail?status=503     the next requests get this status and the body of this request. If this request has
//	                                 no body, they get the body that Confluent's registry would send. location=URL adds
//	                                 a Location header
//	POST   /test/hang                the next requests get no response before DELETE /test/failures
//	DELETE /test/failures            ends all failures and answers hanging requests
//	POST   /test/schemas             registers each schema of a list with its subject, version, and id. The list has the
//	                                 format of GET /schemas. A schema comes after the schemas that it references
//	DELETE /test/schemas             deletes all schemas
//	GET    /test/requests            returns the number of requests of each kind, including failed ones
//
// Both failures accept count=N and path=/schemas/ids/3, the prefix of the paths that fail. Without a count, a failure lasts
// until it is deleted. If several failures match a request, the first one counts.
type control struct {
	registry *srfake.Registry

	mu       sync.Mutex
	failures []*failure
	healed   chan struct{} // closed when the failures are deleted
	requests map[string]int
}

func newControl(registry *srfake.Registry) *control {
	return &control{registry: registry, healed: make(chan struct{}), requests: map[string]int{}}
}

func (c *control) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /test/fail", c.fail)
	mux.HandleFunc("POST /test/hang", c.hang)
	mux.HandleFunc("DELETE /test/failures", c.heal)
	mux.HandleFunc("POST /test/schemas", c.seed)
	mux.HandleFunc("DELETE /test/schemas", func(http.ResponseWriter, *http.Request) { c.registry.Reset() })
	mux.HandleFunc("GET /test/requests", c.list)
	return mux
}

// Counts the request. If a failure matches, makes the request fail. Returns false if the registry must answer the request.
func (c *control) intercept(w http.ResponseWriter, r *http.Request) bool {
	failure, healed := c.next(r)
	switch {
	case failure == nil:
		return false
	case failure.hang:
		select {
		case <-healed:
			return false
		case <-r.Context().Done():
			return true
		}
	default:
		for name, values := range failure.header {
			w.Header()[name] = values
		}
		w.WriteHeader(failure.status)
		_, _ = w.Write(failure.body)
		return true
	}
}

// The failure of this request, and a channel that is closed when the failures end.
func (c *control) next(r *http.Request) (*failure, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[r.Method+" "+r.URL.RequestURI()]++
	for _, failure := range c.failures {
		if failure.count > 0 && strings.HasPrefix(r.URL.Path, failure.path) {
			failure.count--
			return failure, c.healed
		}
	}
	return nil, nil
}

func (c *control) fail(w http.ResponseWriter, r *http.Request) {
	status, err := strconv.Atoi(r.URL.Query().Get("status"))
	if err != nil || status < 200 || status > 599 {
		http.Error(w, "status must be a number from 200 to 599", http.StatusBadRequest)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, bodyMax))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if len(body) == 0 {
		body = fmt.Appendf(nil, `{"error_code":%d,"message":%q}`, status, http.StatusText(status))
	}
	header := http.Header{"Content-Type": {"application/vnd.schemaregistry.v1+json"}}
	if location := r.URL.Query().Get("location"); location != "" {
		header.Set("Location", location)
	}
	c.add(w, r, &failure{status: status, header: header, body: body})
}

func (c *control) hang(w http.ResponseWriter, r *http.Request) {
	c.add(w, r, &failure{hang: true})
}

func (c *control) add(w http.ResponseWriter, r *http.Request, failure *failure) {
	failure.path = r.URL.Query().Get("path")
	failure.count = math.MaxInt
	if count := r.URL.Query().Get("count"); count != "" {
		var err error
		if failure.count, err = strconv.Atoi(count); err != nil {
			http.Error(w, "count must be a number", http.StatusBadRequest)
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, failure)
}

func (c *control) heal(http.ResponseWriter, *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = nil
	close(c.healed)
	c.healed = make(chan struct{})
}

// Registers schemas with chosen ids, to make the ids in recorded frames valid.
func (c *control) seed(w http.ResponseWriter, r *http.Request) {
	var schemas []sr.SubjectSchema
	if err := json.NewDecoder(io.LimitReader(r.Body, bodyMax)).Decode(&schemas); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, schema := range schemas {
		if err := c.put(schema); err != nil {
			http.Error(w, fmt.Sprintf("%s, version %d: %v", schema.Subject, schema.Version, err), http.StatusConflict)
			return
		}
	}
}

func (c *control) put(schema sr.SubjectSchema) (err error) {
	// srfake panics if a version already exists or a reference is invalid.
	defer func() {
		if reason := recover(); reason != nil {
			err = c.share(schema, reason)
		}
	}()
	c.registry.SeedSchema(schema.Subject, schema.Version, schema.ID, schema.Schema)
	return nil
}

// Registers a schema with an id that another subject already has. srfake cannot be seeded with such a schema.
func (c *control) share(schema sr.SubjectSchema, reason any) error {
	id, version, err := c.registry.RegisterSchema(schema.Subject, schema.Schema)
	if err == nil && (id != schema.ID || version != schema.Version) {
		err = fmt.Errorf("%v", reason)
	}
	return err
}

func (c *control) list(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(c.requests)
}
